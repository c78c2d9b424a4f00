"""What was written by another version: an older form is brought up to the present one step by step, a newer refused.

Whoever changes what a file says adds 1 to the `present` number of its kind and one step here or beside it, from the
number before to the new one. A step takes the plain contents of a file and returns them as the next form has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kenyon.errors import ResultsError

Body = dict[str, Any]
Step = Callable[[Body], Body]


@dataclass(frozen=True)
class Formats:
    """The forms of one kind of file. `steps[n]` leads from form n to n + 1."""

    kind: str
    present: int
    steps: Mapping[int, Step] = field(default_factory=dict)
    instead: str = "choose another folder with --out"  # of updating, for whoever has a newer file

    def __post_init__(self) -> None:
        assert set(self.steps) == set(range(1, self.present)), "one step from every form to the next"

    def read(self, body: Body, path: Path) -> Body:
        """The contents in the present form. Raises ValueError for a number that none ever had."""
        if not isinstance(body, dict):
            raise ValueError(f"it is no object in braces but a {type(body).__name__}")
        said = body["format"]
        number = int(said) if isinstance(said, str) else said
        if type(number) is not int:
            raise ValueError(f"there is no format {said!r}")
        self.refuse_newer(number, path)
        if number < 1:
            raise ValueError(f"there is no format {number}")
        for step in range(number, self.present):
            body = self.steps[step](body)
        return body

    def refuse_newer(self, number: Any, path: Path) -> None:
        """Nothing else is asked of what a newer version has written."""
        if type(number) is int and number > self.present:
            raise ResultsError(
                f"{path} is a {self.kind} of format {number}, made by a newer version of Kenyon; this one reads "
                f"formats up to {self.present}. Update Kenyon, or {self.instead}."
            )
