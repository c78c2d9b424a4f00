"""The plan of a store, as a file: what was asked for, and into which fleets it was cut."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kenyon.checksums import crc_of_json
from kenyon.errors import ResultsError
from kenyon.experiments.runner import Plan
from kenyon.formats import Formats
from kenyon.machine import MACHINE
from kenyon.sweep.costs import Work
from kenyon.sweep.kinds import AnyPlan
from kenyon.sweep.leases import EXPIRY, Leases
from kenyon.sweep.orders import Fleet, Key
from kenyon.sweep.space import PLAN, Space

FORMATS = Formats("plan of a sweep", 1)


@dataclass(frozen=True)
class Record:
    identity: str
    about: str  # for people
    runs: int  # of the plan, finished ones included
    fleets: list[str]  # their identities
    labels: list[str]
    works: list[Work]  # what each will cost
    cells: list[list[Key]]

    @classmethod
    def of(cls, identity: str, plans: Mapping[str, AnyPlan], fleets: Sequence[Fleet]) -> Record:
        methods = {point.config.method: None for plan in plans.values() for point in plan.points}
        runs = sum(len(points) * len(plan.seeds) for plan in plans.values() for points in plan.methods)
        return cls(
            identity,
            f"{', '.join(methods)} on {', '.join(plans)}",
            runs,
            [fleet.id for fleet in fleets],
            [fleet.label for fleet in fleets],
            [Work.of(fleet.cells[0].config, len(fleet.cells)) for fleet in fleets],
            [fleet.keys for fleet in fleets],
        )

    def save(self, space: Space) -> None:
        plan = asdict(self)
        body = {"format": FORMATS.present, "checksum": crc_of_json(plan), "plan": plan}
        space.write(PLAN, json.dumps(body).encode())

    @classmethod
    def load(cls, space: Space) -> Record | None:
        """None: the store has no plan."""
        data = space.read(PLAN)
        if data is None:
            return None
        try:
            body = FORMATS.read(json.loads(data), space.local / PLAN)
            plan = body["plan"]
            if body["checksum"] != crc_of_json(plan):
                raise ValueError("its checksum is wrong")
            works = [Work(**work) for work in plan["works"]]
            cells = [[(name, label, seed) for name, label, seed in keys] for keys in plan["cells"]]
            return cls(**plan | {"works": works, "cells": cells})
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise ResultsError(
                f"{space.address}/{PLAN} is damaged ({error}). Remove it: the plan is made anew, and finished runs "
                "stay."
            ) from error


def identity_of_plans(plans: Mapping[str, AnyPlan]) -> str:
    """Of what is asked for, whatever part of it is finished and however it is cut."""
    body: list[Any] = []
    for plan in plans.values():
        points = [[point.config.as_dict(), point.varied] for some in plan.methods for point in some]
        of_images = [plan.keep_every, plan.deterministic] if isinstance(plan, Plan) else []
        body.append([points, plan.seeds, *of_images])
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()[:16]


def wait_until_unused(space: Space, there: Record, tell: Callable[[str], None]) -> None:
    """Before another plan takes its place. Leases of other machines that nobody renews any more take EXPIRY."""
    leases, told = Leases(space), False
    beats: dict[str, int] = {}
    while held := {what: holder for what, holder in leases.held().items() if what != "plan"}:
        for what, holder in held.items():
            if holder is None:
                continue
            if holder.machine == MACHINE or holder.beat != beats.setdefault(what, holder.beat):
                raise ResultsError(
                    f"{space.address} is used by a sweep with another plan ({there.about}): {holder.name}, process "
                    f"{holder.process}, since {holder.since}. Wait until it has ended, or choose another store with "
                    "--out."
                )
        if not told:
            tell(f"Looking whether a sweep with another plan is still at work here, up to {EXPIRY:g} s.")
            told = True
        time.sleep(min(space.pause, 2.0))
