"""Files of a sweep that something has changed: they are refused with words, or taken for none."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from kenyon.errors import KenyonError
from kenyon.sweep import Sweep
from kenyon.sweep.jobs import DONE, Outcome
from kenyon.sweep.leases import Holder, Leases
from kenyon.sweep.status import Watch
from kenyon.sweep.storage import LEASES, MARKS, PLAN
from tests.sweep.conftest import Sweeping
from tests.torture.fuzzing import json_changed


def test_whatever_stands_in_them(planned: Callable[..., Sweep], tmp_path: Path) -> None:
    sweep = planned(fleet=2)
    space, id = sweep.space, sweep.fleets[0].id
    good = {
        PLAN: space.read(PLAN) or b"",
        f"{MARKS}/{id}": json.dumps(asdict(Outcome(DONE, "", [("ewc", 0)], 3.0, "cpu"))).encode(),
        f"{LEASES}/{id}.1": json.dumps(asdict(Holder.here())).encode(),
    }
    refused = 0
    for name, content in good.items():
        draws = random.Random(name)
        for other, usual in good.items():
            space.write(other, usual)
        for _ in range(150):
            space.write(name, json_changed(draws, content))
            try:
                Watch(space).look()
                Leases(space).over(id)
                Leases(space).tidy()
                if name == PLAN and draws.random() < 0.2:
                    space.remove(LEASES)
                    planned(fleet=2)
            except KenyonError as error:
                refused += 1
                assert str(error).strip()
    assert refused > 20


def test_what_is_left_of_a_finished_fleet_is_removed(
    sweeping: Sweeping, planned: Callable[..., Sweep], tmp_path: Path
) -> None:
    """Killed between its last result and the end: what is in its folder stands in the results. Not while somebody
    holds it."""
    fleet = planned(fleet=4).fleets[0]
    sweeping(fleet=4)
    left = tmp_path / "out" / fleet.folder / "digits"
    left.mkdir(parents=True)
    held = Leases(planned(fleet=4).space).claim(fleet.id)
    left.mkdir(parents=True, exist_ok=True)
    assert held is not None and not planned(fleet=4).fleets and left.exists()
    held.release()
    assert not planned(fleet=4).fleets and not (tmp_path / "out" / fleet.folder).exists()
