"""Results as tables, pictures and pages. The package is also a function: `kenyon.report(results, out)`.

It has to be both: importing a package makes it an attribute of its parent, in place of a function of the same name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

    from kenyon.experiments.results import ResultBase


def report(results: Path | str, out: Path | str = "report.html", *, apart: bool = False) -> Path:
    """Write the results of a folder as one HTML file that opens offline, and return its path.

    Results of one method under different settings are refused; with `apart` they are labelled by what differs.
    """
    from kenyon.report.page import write_report

    return write_report(results, out, apart=apart).path


def to_pandas(results: Mapping[str, ResultBase] | Iterable[ResultBase]) -> DataFrame:
    """Return results, a list or the dictionary of `kenyon.run`, as a tidy DataFrame.

    Columns: benchmark, method, settings that differ, seed, after_task (number of learned tasks), task, task_name, and
    accuracy or score. A single result has `Result.to_pandas`. Needs pandas: `pip install 'kenyon[pandas]'`.
    """
    from kenyon.experiments.tidy import to_pandas

    return to_pandas(results.values() if isinstance(results, Mapping) else results)


class _Callable(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Path:
        return report(*args, **options)


sys.modules[__name__].__class__ = _Callable
