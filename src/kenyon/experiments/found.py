"""The outcome of a search: the score of every point, the best of them, and the origin of the choice, as TOML."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kenyon.data import SearchProtocol
from kenyon.errors import ResultsError
from kenyon.experiments.results import Result, value_text
from kenyon.metrics import Summary
from kenyon.utils.files import write_atomically

FILE = "best.toml"


@dataclass(frozen=True)
class Score:
    """A point, and its final average accuracy on held-out training data, in per cent."""

    settings: dict[str, Any]  # values of the settings that vary
    aac: Summary | None  # over the folds; None if the loss of one did not stay finite

    @property
    def mean(self) -> float:
        return math.nan if self.aac is None else self.aac.mean

    @classmethod
    def of(cls, result: Result) -> Score:
        return cls(result.point, result.aac if len(result.complete_runs) == len(result.runs) else None)


@dataclass(frozen=True)
class Found:
    """The outcome of a search: `best`, the scores of all points, and the origin of the choice."""

    benchmark: str
    method: str
    protocol: SearchProtocol
    stream: str  # how the protocol changes the benchmark's stream, for people
    tasks: int
    epochs: int | None  # a task; None where it is one of the settings that vary
    seeds: tuple[int, ...]  # one for each fold
    fixed: dict[str, Any]  # settings given for all points
    scores: tuple[Score, ...]  # the best first
    made: dict[str, Any]  # origin: versions, device, search
    folder: Path

    @property
    def best(self) -> dict[str, Any]:
        """The settings with the best score, as `kenyon.run` takes them."""
        if self.scores[0].aac is None:
            raise ResultsError(
                f"No point stayed finite in the search of {self.method} on {self.benchmark}. Try smaller values."
            )
        return dict(self.scores[0].settings)

    @property
    def path(self) -> Path:
        """The file that `kenyon run --config` takes."""
        return self.folder / FILE

    def behind(self, score: Score) -> Summary | None:
        """Return the difference to the best point, fold by fold: equal folds have equal tasks and first weights."""
        best = self.scores[0].aac
        if score.aac is None or best is None:
            return None
        return Summary.of([there - here for there, here in zip(best.runs, score.aac.runs, strict=True)])

    @property
    def at_the_end(self) -> list[str]:
        """Sentences about settings whose best value is the smallest or the largest that was tried."""
        found = []
        for name, best in self.best.items():
            tried = {score.settings[name] for score in self.scores if name in score.settings}
            if len(tried) > 2 and all(type(v) in (int, float) for v in tried):
                end = {min(tried): "smallest", max(tried): "largest"}.get(best)
                found += [f"{name}={value_text(best)} is the {end} that was tried"] if end else []
        return found

    def table(self) -> str:
        """Return the points as text, best first: mean ± standard error over the folds, and difference to the best."""
        names = list(self.scores[0].settings)
        rows = [[*names, "AAC %", "behind the best"]]
        for score in self.scores:
            behind = self.behind(score)
            numbers = ["not finite", ""] if score.aac is None else [score.aac.text(), behind.text() if behind else ""]
            if score is self.scores[0]:
                numbers[1] = ""
            rows.append([*(value_text(score.settings[name]) for name in names), *numbers])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        return "\n".join(lines)

    def to_toml(self) -> str:
        """Return the choice as a file for `kenyon run --config`. Epochs given for the search are not part of it."""
        chosen = {name: value for name, value in self.fixed.items() if name != "epochs"} | self.best
        first = self.scores[0].aac
        assert first is not None
        return toml_text(
            {
                "benchmark": self.benchmark,
                "method": self.method,
                "settings": chosen,
                "origin": {
                    "protocol": self.protocol.name,
                    "stream": self.stream,
                    "scored_on": f"{self.protocol.share:g} of the training data, held out; no test data",
                    "share": self.protocol.share,
                    "tasks": self.tasks,
                    **({} if self.epochs is None else {"epochs": self.epochs}),
                    "seeds": list(self.seeds),
                    **_numbers(first),
                    **self.made,
                    "points": [score.settings | _numbers(score.aac) for score in self.scores],
                },
            },
            f"Chosen by `kenyon search`, {len(self.scores)} points. To run it: kenyon run --config {FILE}",
        )

    def save(self) -> None:
        """Write `best.toml`, which `kenyon run --config` takes."""
        write_atomically(self.path, self.to_toml().encode())


def _numbers(aac: Summary | None) -> dict[str, Any]:
    if aac is None:
        return {"finite": False}
    sem = {"sem": round(aac.sem, 4)} if math.isfinite(aac.sem) else {}
    return {"score": round(aac.mean, 4), **sem, "folds": [round(run, 4) for run in aac.runs]}


def ranked(results: Sequence[Result]) -> tuple[Score, ...]:
    """Return scores, best first, equal ones in the order given. Points that did not stay finite come last."""
    scores = map(Score.of, results)
    return tuple(sorted(scores, key=lambda score: -score.mean if score.aac else math.inf))


def made_by(results: Sequence[Result], **more: Any) -> dict[str, Any]:
    """Return device, versions and time of the training."""
    fleets = [fleet for result in results for fleet in result.fleets]
    together: Mapping[str, list[str]] = {
        "device": sorted({fleet.device for fleet in fleets}),
        "precision": sorted({fleet.precision for fleet in fleets}),
        **{
            name: sorted({fleet.versions[name] for fleet in fleets if name in fleet.versions})
            for name in ("kenyon", "torch", "python", "platform")
        },
    }
    return {
        **{name: ", ".join(values) for name, values in together.items()},
        "finished": max(fleet.finished for fleet in fleets),
        "seconds": round(sum(fleet.seconds for fleet in fleets), 2),
        **more,
    }


# ------------------------------------------------------------------------------------------------- TOML

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(body: Mapping[str, Any], comment: str = "") -> str:
    """Return a TOML document of plain values, which come first, tables of such, and lists of tables."""
    head = [f"# {line}".rstrip() for line in comment.splitlines()]
    return "\n".join([*head, *_table(body, ())]).strip("\n") + "\n"


def _table(body: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    tables = {name: list(_tables(value)) for name, value in body.items()}
    for name, value in body.items():
        if not tables[name]:
            yield f"{_key(name)} = {_value(value)}"
    for name, found in tables.items():
        inner = (*path, _key(name))
        brackets = ("[", "]") if isinstance(body[name], Mapping) else ("[[", "]]")
        for one in found:
            yield from ("", f"{brackets[0]}{'.'.join(inner)}{brackets[1]}", *_table(one, inner))


def _tables(value: Any) -> Sequence[Mapping[str, Any]]:
    """Return a table, or the tables of a list; empty for other values."""
    if isinstance(value, Mapping):
        return [value]
    return value if type(value) in (list, tuple) and all(isinstance(one, Mapping) for one in value) else []


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    if type(value) in (list, tuple):
        return f"[{', '.join(map(_value, value))}]"
    if type(value) is float:
        return repr(value)  # TOML has nan and inf
    if not isinstance(value, (str, int, float)):
        raise TypeError(f"TOML has no {type(value).__name__}")
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON allows the character DEL
