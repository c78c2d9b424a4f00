"""The meaning of every setting of `--set`, in one line each. Methods declare which of them they take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kenyon.experiments.config import settings
from kenyon.methods import METHODS
from kenyon.methods.registry import switches

MEANINGS = {
    # of every method: how it is trained
    "epochs": "of every task",
    "batch": "samples of a step",
    "rate": "learning rate at the beginning of every task",
    "schedule": "plateau: the rate falls when the validation loss does not, and the best weights are kept; or step: "
    "it falls once, and the last weights are kept",
    "patience": "epochs without a better validation loss after which the rate falls (schedule=plateau)",
    "drop": "by what the rate is divided when it falls",
    "drop_epoch": "after how many epochs it falls (schedule=step)",
    "validation": "share of the training data that is held out to follow; 0 with schedule=step",
    "optimiser": "adam or sgd",
    "momentum": "of sgd",
    "carry": "whether one optimizer lives through all tasks, and its momentum goes on",
    "penalties_from": "the task, counted from 1, from which on penalties on weights act",
    "bounded": "whether importances count for no more than steps of sgd can follow",
    # and with which network
    "width": "of the network's layers; with several learners of each",
    "learners": "how many, at the width that keeps the number of parameters (also --learners)",
    "precision": "of the learners: auto (bfloat16 on a GPU), float32 or bfloat16",
    "first_heads": "what the head of a task begins with: drawn, or zero",
    "diversity": "how the learners begin: high (each its own weights and dropout), medium (equal weights) or low "
    "(equal weights, no dropout)",
    "gate": "whether every learner has a gate of its own for every task",
    # which form, where paper and practice differ; and the single switches that it sets
    "definition": "published (the defaults), paper (its equations) or authors (their code): sets the switches",
    # stability
    "lambda_sp": "strength of stability protection",
    "fisher": "which Fisher information: published, exact (the paper's equation), or in the scale of large images or "
    "of core50",
    "omega": "which importance of MAS: published, or in the scale of large images or of core50",
    "accumulate": "how importances of several tasks become one: average, sum or last",
    "rwalk_form": "importance of RWalk as published, or as in its paper",
    "lambda_cpr": "strength of CPR, which rewards predictions that are not too sure",
    "mu": "strength at which nodes that no task needs shrink",
    "rho": "share of these nodes that begin anew for the next task",
    "eta": "how much of a node's importance remains from task to task",
    # active forgetting
    "lambda_af": "strength of active forgetting, AF-1 or AF-2",
    "af1": "rates of AF-1: adaptive (learned, by parameter tensor), learner (learned, by learner) or uniform",
    "af1_heads": "which heads AF-1 decays: current, open (also those of later tasks: published on CIFAR), all "
    "(finished ones too) or none",
    "af2_validated": "whether AF-2 counts in the validation loss",
    "af2_first": "how the expanded network begins: learned from the first task on, or waits until the rate falls",
    "from_first": "whether penalties act from the first task on",
    "gamma": "strength of AF-S, the divergence between the learners' predictions",
    "afs": "weights of AF-S: adaptive (learned) or uniform",
    "afs_form": "AF-S as published (the other learner's prediction is a target), or as in the paper's equation",
    # a second column
    "decay": "how much of the importances remains when a task is added, which are then summed",
    "reinit": "whether the active column begins every task anew",
    "lambda_kd": "strength of distillation: the heads of earlier tasks keep their predictions on new data",
    "temperature": "at which predictions are imitated",
    # replay
    "memory": "samples of every class that are kept",
    "replay_batch": "old samples that a step meets",
    "replay": "published: so many of every task before; mixed: of all of them together",
}


def takes(setting: str) -> list[str]:
    """Return the methods that take a setting."""
    return [name for name in METHODS if setting in settings(name)]


def settings_markdown() -> str:
    """Return two tables, of settings and of the switches of a definition: the methods that take each, and its
    meaning.
    """
    methods = [name for name in METHODS if METHODS[name].build.__module__.startswith("kenyon.methods")]

    def table(head: str, names: Iterable[str]) -> list[str]:
        rows = (
            (f"`{name}`", _methods_text([m for m in takes(name) if m in methods], len(methods)), MEANINGS[name])
            for name in names
        )
        return [f"| {head} | of | |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]

    single = switches()
    shown = table("setting", (name for name in MEANINGS if name not in single))
    return "\n".join([*shown, "", *table("switch of a definition", (name for name in MEANINGS if name in single))])


def _methods_text(methods: Sequence[str], of: int) -> str:
    if len(methods) > of / 2:
        return "all" if len(methods) == of else "most"
    return ", ".join(f"`{name}`" for name in methods)
