"""Published average accuracy of results that are run as published. The numbers are in the files of the benchmarks."""

from __future__ import annotations

from kenyon.benchmarks.registry import BENCHMARKS
from kenyon.experiments.config import Config
from kenyon.experiments.results import Result

UNPUBLISHED = {"precision"}  # settings whose published value is not known, or does not matter


def published_for(result: Result) -> float | None:
    """Return the published average accuracy of a method that is run as published: without changes, on test data.

    Points of a grid have none.
    """
    known = BENCHMARKS.get(result.benchmark)
    value = known.published.get(result.method) if known else None
    if value is None or result.point or result.held_out:
        return None
    words, settings = Config.from_dict(result.config).changes
    return None if words or settings.keys() - UNPUBLISHED else value
