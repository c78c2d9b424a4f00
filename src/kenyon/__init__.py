"""Kenyon: continual learning with collaborating learners and active forgetting.

    import kenyon
    results = kenyon.run("digits", methods="finetune,ewc,caf-ewc", seeds=5)
    found = kenyon.search("digits", method="caf-ewc", lambda_sp=[1e5, 1e6, 1e7])

    learner = kenyon.ContinualLearner(backbone)
    learner.fit(X, y, task="cats").fit(X2, y2, task="dogs")

Names are imported when they are first used: `import kenyon` alone is quick.
"""

from __future__ import annotations

from importlib import import_module

from kenyon.products import ask_for_equal_bits
from kenyon.version import __version__

ask_for_equal_bits()

TYPE_CHECKING = False  # typing itself would take as long to import as all the rest here
if TYPE_CHECKING:
    from typing import Any

    from kenyon.errors import KenyonError
    from kenyon.estimator import ContinualLearner
    from kenyon.experiments import Found, Result, run, search
    from kenyon.integrity import verify
    from kenyon.methods import Method
    from kenyon.nets import Net
    from kenyon.report import report
    from kenyon.streams import Source, Stream, Task
    from kenyon.train import Trainer, Training

__all__ = [
    "ContinualLearner",
    "Found",
    "KenyonError",
    "Method",
    "Net",
    "Result",
    "Source",
    "Stream",
    "Task",
    "Trainer",
    "Training",
    "__version__",
    "report",
    "run",
    "search",
    "verify",
]

_HOMES = {
    "ContinualLearner": "kenyon.estimator",
    "Found": "kenyon.experiments",
    "KenyonError": "kenyon.errors",
    "Method": "kenyon.methods",
    "Net": "kenyon.nets",
    "Result": "kenyon.experiments",
    "Source": "kenyon.streams",
    "Stream": "kenyon.streams",
    "Task": "kenyon.streams",
    "Trainer": "kenyon.train",
    "Training": "kenyon.train",
    "report": "kenyon.report",
    "run": "kenyon.experiments",
    "search": "kenyon.experiments",
    "verify": "kenyon.integrity",
}


# Parts that are there without another import: kenyon.streams.from_arrays(...).
_PARTS = (
    "analysis",
    "errors",
    "experiments",
    "forces",
    "importance",
    "methods",
    "metrics",
    "nets",
    "penalties",
    "reproduce",
    "rl",
    "strengths",
    "streams",
    "sweep",
    "theory",
    "tools",
    "train",
)


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f"kenyon.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'kenyon' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """With what has not been imported yet."""
    return sorted({*globals(), *__all__, *_PARTS})
