"""Results as tidy tables: a row per run, number of learned tasks and task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

from kenyon.errors import optional_import

if TYPE_CHECKING:
    from pandas import DataFrame

FIRST, LAST = ("benchmark", "method"), ("seed", "after_task", "task", "task_name", "accuracy", "score")
Row = dict[str, Any]


class Tidy(Protocol):
    """A result, of images or of games."""

    @property
    def config(self) -> dict[str, Any]: ...
    @property
    def point(self) -> dict[str, Any]: ...
    @property
    def benchmark(self) -> str: ...
    @property
    def method(self) -> str: ...
    def measurements(self) -> Iterator[Row]: ...


def tidy_rows(results: Iterable[Tidy]) -> tuple[list[str], list[Row]]:
    """Return columns and rows of results.

    Columns are benchmark, method, the settings that differ between results of a method, seed, after_task (number of
    learned tasks), task (from 1, in the order of the run), task_name, and accuracy in per cent or the raw score.
    Diverged runs are left out, as in tables, and so are values that were not measured.
    """
    several = list(results)
    settings = [{**_flat(r.config), **r.point} for r in several]
    varied = dict.fromkeys(name for r in several for name in r.point)
    named = sorted(zip(((r.benchmark, r.method) for r in several), settings, strict=True), key=lambda pair: pair[0])
    for _, group in groupby(named, key=lambda pair: pair[0]):
        of_method = [values for _, values in group]
        names = dict.fromkeys(name for values in of_method for name in values)
        varied |= dict.fromkeys(n for n in names if len({str(values.get(n)) for values in of_method}) > 1)
    rows = [
        {"benchmark": r.benchmark, "method": r.method, **{n: values.get(n) for n in varied}, **row}
        for r, values in zip(several, settings, strict=True)
        for row in r.measurements()
    ]
    present = {name for row in rows for name in row}
    return [*FIRST, *varied, *(name for name in LAST if name in present or name not in ("accuracy", "score"))], rows


def to_pandas(results: Iterable[Tidy]) -> DataFrame:
    """Return results as a DataFrame with the columns of `tidy_rows`. Needs pandas: pip install 'kenyon[pandas]'."""
    with optional_import("to_pandas", "pandas", "pandas"):
        import pandas
    columns, rows = tidy_rows(results)
    return pandas.DataFrame(rows, columns=columns)


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a configuration by their names, without those of its parts."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= value if hasattr(value, "keys") else {name: value}
    return found
