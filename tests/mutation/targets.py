"""Which files are mutated, and which tests may notice. The only place that knows where things stand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Target:
    """A module of the report, its files, and tests that are written for them: these run first."""

    files: tuple[str, ...]
    tests: tuple[str, ...]
    # Functions and classes that only run where there is a GPU; those are tested on one.
    gpu_only: frozenset[str] = frozenset()


def _in(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"src/kenyon/{folder}{name}.py" for name in names)


TARGETS: dict[str, Target] = {
    "importance": Target(
        _in("", "methods/importance", "methods/path_importance", "rl/importance"),
        ("tests/test_importance.py", "tests/test_tracked.py", "tests/rl/test_importance.py"),
    ),
    "penalties": Target(
        _in("methods/penalties/", "weights", "predictions", "strength")
        + _in("", "backends/triton/updates", "training/objective"),
        ("tests/test_penalties.py", "tests/test_confidence.py", "tests/train/test_joint_terms.py"),
    ),
    "optimizers": Target(
        _in("backends/", "optimizers"),
        ("tests/train/test_adam.py", "tests/train/test_stiffness.py", "tests/test_factors.py"),
        frozenset({"Adam._in_one_pass", "Sgd._in_one_pass"}),
    ),
    "schedule": Target(_in("training/", "regime"), ("tests/train/test_plateau.py", "tests/train/test_settling.py")),
    "metrics": Target(_in("", "metrics", "rl/scores"), ("tests/test_metrics.py", "tests/rl/test_scores.py")),
    "streams": Target(
        _in("data/", "sources", "tasks", "arrays", "holdout"),
        (
            "tests/streams/test_source.py",
            "tests/streams/test_given.py",
            "tests/streams/test_arrays.py",
            "tests/streams/test_withheld.py",
        ),
    ),
    "ensemble": Target(
        _in("training/", "batches", "evaluation", "replay"),
        (
            "tests/train/test_batches.py",
            "tests/train/test_together.py",
            "tests/train/test_members.py",
            "tests/train/test_replay.py",
        ),
    ),
    "ppo": Target(
        _in("rl/", "ppo", "play"),
        ("tests/rl/test_ppo.py", "tests/rl/test_policy.py", "tests/rl/test_loop.py"),
    ),
    "theory": Target(
        _in(
            "paper/theory/",
            *("beliefs", "best_rate", "bounds", "forgetting", "objective"),
        ),
        tuple(
            f"tests/theory/test_{name}.py" for name in ("arguments", "best_rate", "bounds", "forgetting", "strengths")
        ),
    ),
    "leases": Target(_in("sweep/", "leases"), ("tests/sweep/test_leases.py",)),
    "state": Target(
        _in("", "training/checkpoint", "experiments/unfinished"),
        (
            "tests/train/test_state.py",
            "tests/experiments/test_states.py",
            "tests/nothing_lost/test_states.py",
            "tests/train/test_resume.py",
        ),
    ),
    "mechanisms": Target(
        _in("methods/", "expanded", "agscl"),
        (
            "tests/mechanisms/test_expanded.py",
            "tests/mechanisms/test_sparsity.py",
            "tests/test_methods.py",
            "tests/train/test_settling.py",
        ),
    ),
    "methods": Target(
        _in("methods/", "registry", "regularization", "progress_compress", "baselines")
        + _in("benchmarks/", "hyperparameters"),
        (
            "tests/test_methods.py",
            "tests/experiments/test_searched.py",
            "tests/experiments/test_meanings.py",
            "tests/train/test_own_penalties.py",
        ),
    ),
}

# More tests that run the code above. What takes long and tells little more is left out.
SUITE = (
    "tests/test_random.py",
    "tests/test_names.py",
    *(
        f"tests/train/test_{name}.py"
        for name in (
            *("discrete", "evaluate", "groups", "independence", "inputs", "loop", "progress_compress", "shared_head"),
            *("slow_protocol", "slow_sparsity", "statistics"),
        )
    ),
    "tests/streams/test_digits.py",
    "tests/streams/test_omniglot.py",
    "tests/streams/test_cifar.py",
    "tests/rl/test_importance.py",
    "tests/rl/test_runs.py",
    "tests/sweep/test_leases.py",
    "tests/experiments/test_scores.py",
    "tests/experiments/test_arguments.py",
    "tests/tools/test_protection.py",
    "tests/tools/test_forgetting.py",
)


def suite_files() -> list[str]:
    """The files of the suite."""
    own = {test for target in TARGETS.values() for test in target.tests}
    found = {
        str(path.relative_to(ROOT))
        for name in {*SUITE, *own}
        for path in ([ROOT / name] if name.endswith(".py") else (ROOT / name).rglob("test_*.py"))
    }
    missing = sorted(name for name in {*SUITE, *own} if not (ROOT / name).exists())
    if missing:
        raise SystemExit(f"targets.py names tests that do not exist: {', '.join(missing)}")
    return sorted(found, key=lambda name: (name not in own, name))


def source_files() -> list[str]:
    """The files that are mutated."""
    files = [file for target in TARGETS.values() for file in target.files]
    missing = [file for file in files if not (ROOT / file).exists()]
    if missing:
        raise SystemExit(f"targets.py names files that do not exist: {', '.join(missing)}")
    return files
