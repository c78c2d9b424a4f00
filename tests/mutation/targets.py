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
        ("tests/methods/test_importance.py", "tests/methods/test_tracked.py", "tests/rl/test_importance.py"),
    ),
    "penalties": Target(
        _in("methods/penalties/", "weights", "predictions", "strength")
        + _in("", "backends/triton/updates", "training/objective"),
        ("tests/methods/test_penalties.py", "tests/methods/test_confidence.py", "tests/training/test_joint_terms.py"),
    ),
    "optimizers": Target(
        _in("backends/", "optimizers"),
        ("tests/backends/test_optimizers.py", "tests/backends/test_stiffness.py", "tests/backends/test_factors.py"),
        frozenset({"Adam._fused", "Sgd._fused"}),
    ),
    "schedule": Target(
        _in("training/", "regime"), ("tests/training/test_plateau.py", "tests/training/test_settling.py")
    ),
    "metrics": Target(_in("", "metrics", "rl/scores"), ("tests/test_metrics.py", "tests/rl/test_scores.py")),
    "streams": Target(
        _in("data/", "sources", "tasks", "arrays", "holdout"),
        (
            "tests/data/test_source.py",
            "tests/data/test_external.py",
            "tests/data/test_arrays.py",
            "tests/data/test_holdout.py",
        ),
    ),
    "ensemble": Target(
        _in("training/", "batches", "evaluation", "replay"),
        (
            "tests/training/test_batches.py",
            "tests/training/test_together.py",
            "tests/training/test_members.py",
            "tests/training/test_replay.py",
        ),
    ),
    "ppo": Target(
        _in("rl/", "ppo", "play") + _in("experiments/", "policy"),
        ("tests/rl/test_ppo.py", "tests/rl/test_policy.py", "tests/rl/test_loop.py"),
    ),
    "theory": Target(
        _in(
            "paper/theory/",
            *("beliefs", "bounds", "objective"),
        ),
        tuple(
            f"tests/paper/theory/test_{name}.py"
            for name in ("arguments", "best_rate", "bounds", "forgetting", "strengths")
        ),
    ),
    "leases": Target(_in("sweep/", "leases"), ("tests/sweep/test_leases.py",)),
    "state": Target(
        _in("", "training/checkpoint", "experiments/store"),
        (
            "tests/training/test_state.py",
            "tests/experiments/test_states.py",
            "tests/nothing_lost/test_states.py",
            "tests/training/test_resume.py",
        ),
    ),
    "mechanisms": Target(
        _in("methods/", "active_forgetting", "agscl"),
        (
            "tests/methods/test_expanded.py",
            "tests/methods/test_sparsity.py",
            "tests/methods/test_methods.py",
            "tests/training/test_settling.py",
        ),
    ),
    "methods": Target(
        _in("methods/", "base", "registry", "regularization", "collaborative", "progress_compress", "baselines")
        + _in("benchmarks/", "registry", "strengths"),
        (
            "tests/methods/test_methods.py",
            "tests/experiments/test_searched.py",
            "tests/experiments/test_meanings.py",
            "tests/training/test_own_penalties.py",
        ),
    ),
}

# More tests that run the code above. What takes long and tells little more is left out.
SUITE = (
    "tests/test_random.py",
    "tests/test_names.py",
    *(
        f"tests/training/test_{name}.py"
        for name in (
            *("discrete", "evaluate", "groups", "independence", "inputs", "loop", "progress_compress", "shared_head"),
            *("slow_protocol", "slow_sparsity", "statistics"),
        )
    ),
    "tests/benchmarks/test_digits.py",
    "tests/benchmarks/test_omniglot.py",
    "tests/benchmarks/test_cifar.py",
    "tests/rl/test_importance.py",
    "tests/rl/test_runs.py",
    "tests/sweep/test_leases.py",
    "tests/experiments/test_scores.py",
    "tests/experiments/test_arguments.py",
    "tests/regularizers/test_protection.py",
    "tests/regularizers/test_forgetting.py",
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
