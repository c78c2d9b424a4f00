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

from kenyon.renamed import RENAMED, keep_old_imports
from kenyon.utils.mkl import request_equal_bits
from kenyon.version import __version__

TYPE_CHECKING = False  # typing itself would take as long to import as all the rest here

if TYPE_CHECKING:
    from typing import Any

    from kenyon.data import Source, Stream, Task
    from kenyon.errors import KenyonError
    from kenyon.estimator import ContinualLearner
    from kenyon.experiments import Found, Result, run, search
    from kenyon.methods import Method
    from kenyon.models import Net
    from kenyon.report import report
    from kenyon.report.verify import verify
    from kenyon.training import Trainer, Training

request_equal_bits()
keep_old_imports()

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
    "Found": "kenyon.experiments.found",
    "KenyonError": "kenyon.errors",
    "Method": "kenyon.methods",
    "Net": "kenyon.models",
    "Result": "kenyon.experiments.results",
    "Source": "kenyon.data",
    "Stream": "kenyon.data",
    "Task": "kenyon.data",
    "Trainer": "kenyon.training",
    "Training": "kenyon.training",
    "report": "kenyon.report",
    "run": "kenyon.experiments.runner",
    "search": "kenyon.experiments.hyper_search",
    "verify": "kenyon.report.verify",
}


# Packages and modules that are there without another import: kenyon.data.from_arrays(...).
_PARTS = (
    "benchmarks",
    "data",
    "errors",
    "experiments",
    "methods",
    "metrics",
    "models",
    "paper",
    "regularizers",
    "rl",
    "sweep",
    "training",
)


def __getattr__(name: str) -> Any:
    if name in _PARTS or name in RENAMED:
        return import_module(f"kenyon.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'kenyon' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """With what has not been imported yet."""
    return sorted({*globals(), *__all__, *_PARTS})
