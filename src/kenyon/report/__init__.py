"""Results as tables, pictures and pages. The package is also a function: `kenyon.report(results, out)`.

It has to be both. Python makes a package that was imported an attribute of the one above it, in place of any function
of the same name.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def report(results: Path | str, out: Path | str = "report.html", *, apart: bool = False) -> Path:
    """Write one HTML file with everything that a results folder holds; it opens offline.

    Results of one method under different settings are refused, or with `apart` labelled by what differs.
    """
    from kenyon.report.page import write_report

    return write_report(results, out, apart=apart).path


class _Callable(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Path:
        return report(*args, **options)


sys.modules[__name__].__class__ = _Callable
