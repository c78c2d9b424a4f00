"""A lease has one holder at a time, and outlives none for long."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from kenyon.errors import ConfigError, ResultsError
from kenyon.sweep import leases as module
from kenyon.sweep.jobs import DONE, Outcome
from kenyon.sweep.leases import Holder, Lease, Leases
from kenyon.sweep.storage import LEASES, Storage, open_storage
from kenyon.utils import clock
from kenyon.utils.clock import Stopwatch
from kenyon.utils.files import MACHINE_ID

DEAD = 999_999_999  # no process has this number


@pytest.fixture(params=["folder", "memory", "file"])
def space(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param != "folder":
        pytest.importorskip("fsspec")
    return open_storage(
        {"folder": str(tmp_path), "memory": f"memory://{tmp_path}", "file": f"file://{tmp_path}"}[request.param]
    )


def left_by(space: Storage, holder: Holder, what: str = "fleet") -> None:
    space.write(f"{LEASES}/{what}.1", json.dumps(asdict(holder)).encode())


def test_a_file_is_created_once(space: Storage) -> None:
    assert space.create(".sweep/leases/one", b"first")
    assert not space.create(".sweep/leases/one", b"second")
    assert space.read(".sweep/leases/one") == b"first"


def test_an_fsspec_that_creates_files_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those before 2024.12 take the request and overwrite. PyTorch brings any fsspec along."""
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setattr(fsspec.AbstractFileSystem, "pipe_file", lambda self, path, value, **kwargs: None)
    with pytest.raises(ConfigError, match=r"fsspec .* cannot create.*pip install 'kenyon\[remote\]'"):
        open_storage("memory://anywhere")


def test_one_holds_it(space: Storage) -> None:
    mine, theirs = Leases(space), Leases(space)
    lease = mine.claim("fleet")
    assert lease is not None and theirs.claim("fleet") is None and mine.claim("fleet") is None
    assert theirs.over("fleet") is None and [*theirs.held()] == ["fleet"]
    other = theirs.claim("another")
    assert other is not None
    lease.release()
    other.release()
    assert theirs.over("fleet") == b"" and not theirs.held()
    assert theirs.claim("fleet") is not None


def test_of_many_that_try_one_has_it(space: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    inside: list[int] = []
    most: list[int] = []
    monkeypatch.setattr(space, "pause", 0.001)

    def often() -> None:
        leases = Leases(space)
        for _ in range(10):
            with leases.holding("results"):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 40 and set(most) == {1}
    assert not space.names(LEASES)


def test_that_of_a_process_that_is_gone_is_over(space: Storage) -> None:
    left_by(space, replace(Holder.here(), process=DEAD))
    assert Leases(space).held() == {}
    first, second = Leases(space).claim("fleet"), Leases(space).claim("fleet")
    assert first is not None and first.number == 2 and second is None
    assert space.names(LEASES) == ["fleet.2"]


def test_that_of_another_machine_is_over_when_it_has_not_changed_for_long(
    space: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = replace(Holder.here(), machine="another", process=DEAD)
    left_by(space, theirs)
    leases = Leases(space)
    assert leases.claim("fleet") is None
    monkeypatch.setattr(Stopwatch, "seconds", property(lambda watch: module.EXPIRY + 1))
    left_by(space, replace(theirs, beat=1))
    monkeypatch.undo()
    assert leases.claim("fleet") is None  # it lives
    monkeypatch.setattr(Stopwatch, "seconds", property(lambda watch: module.EXPIRY + 1))
    said = leases.over("fleet")
    monkeypatch.undo()
    assert said and Leases(space).claim("fleet") is None  # who has not watched does not know,
    assert Leases(space).claim("fleet", over=b"something else") is None
    assert Leases(space).claim("fleet", over=said) is not None  # but can be told


def test_it_is_over_when_it_has_not_changed_for_so_long_as_was_seen(
    space: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking does not make it younger; a beat does."""
    now = [100.0]
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: now[0]))
    theirs = replace(Holder.here(), machine="another")
    left_by(space, theirs)
    leases = Leases(space)
    for seconds, over in ((0, False), (40, False), (59, False), (61, True)):
        now[0] = 100.0 + seconds
        assert (leases.over("fleet") is not None) == over, seconds
    left_by(space, replace(theirs, beat=1))
    for seconds, over in ((62, False), (121, False), (123, True)):
        now[0] = 100.0 + seconds
        assert (leases.over("fleet") is not None) == over, seconds


def test_who_has_just_claimed_it_has_done_nothing_yet(space: Storage) -> None:
    lease = Leases(space).claim("fleet")
    assert lease is not None
    holder = Leases(space).held()["fleet"]
    assert holder is not None and (holder.share, holder.beat) == (0, 0)
    lease.renew()
    holder = Leases(space).held()["fleet"]
    assert holder is not None and (holder.share, holder.beat) == (0, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"machine": 5},
        {"name": None},
        {"since": 2.5},
        {"process": "12"},
        {"process": 12.0},
        {"process": True},
        {"beat": "3"},
        {"beat": None},
        {"share": "half"},
        {"share": -0.1},
        {"share": 1.1},
    ],
)
def test_what_no_holder_says_is_not_believed(change: dict[str, object]) -> None:
    whole = asdict(replace(Holder.here(), beat=3, share=0.5))
    assert Holder.read(json.dumps(whole).encode()) == Holder(**whole)
    assert Holder.read(json.dumps(whole | change).encode()) is None
    assert Holder.read(json.dumps(whole | {"share": 1}).encode()) is not None


def test_what_is_lost_stays_lost(space: Storage) -> None:
    """Also when those who went on have finished: nobody is told of work that was done twice."""
    lease = Leases(space).claim("fleet")
    assert lease is not None
    again = Leases(space).claim("fleet", over=space.read(lease.file) or b"")
    assert again is not None
    lease.renew()
    again.release()
    lease.renew()
    assert lease.lost and space.names(LEASES) == []


def test_who_lost_it_notices(space: Storage) -> None:
    lease = Leases(space).claim("fleet")
    assert lease is not None
    lease.renew()
    assert not lease.lost
    again = Leases(space).claim("fleet", over=space.read(lease.file) or b"")
    assert again is not None
    lease.share = 0.5
    lease.renew()
    again.renew()
    assert lease.lost and not again.lost
    lease.release()
    assert Leases(space).claim("fleet") is None


def test_a_lease_that_cannot_be_read_lasts_until_it_expires(space: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    space.write(f"{LEASES}/fleet.1", b"{")
    leases = Leases(space)
    assert leases.claim("fleet") is None and leases.held() == {"fleet": None}
    monkeypatch.setattr(Stopwatch, "seconds", property(lambda watch: module.EXPIRY + 1))
    assert leases.claim("fleet") is not None


def test_one_that_was_released_while_another_looked_is_not_claimed_twice(
    space: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B lists A's lease, A releases it, C begins anew with the first generation: B must not take it for the next."""
    first = Leases(space).claim("results")
    assert first is not None
    third: list[Lease | None] = []
    read = space.read

    def released(name: str) -> bytes | None:
        monkeypatch.setattr(space, "read", read)
        first.release()
        found = space.read(name)
        third.append(Leases(space).claim("results"))
        return found

    monkeypatch.setattr(space, "read", released)
    second = Leases(space).claim("results")
    assert third[0] is not None and second is None
    third[0].renew()
    assert not third[0].lost and [*Leases(space).held()] == ["results"]


def test_who_slept_while_others_went_on_does_not_get_it(space: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """B finds the first generation over and falls asleep. Others claim the second and, over that, the third, which
    removes the second: B can create it when it wakes, and must not keep it.
    """
    left_by(space, replace(Holder.here(), process=DEAD))
    create = space.create
    latest: list[Lease | None] = []

    def slept(name: str, data: bytes) -> bool:
        monkeypatch.setattr(space, "create", create)
        second = Leases(space).claim("fleet")
        assert second is not None
        latest.append(Leases(space).claim("fleet", over=second.data()))
        return create(name, data)

    monkeypatch.setattr(space, "create", slept)
    assert Leases(space).claim("fleet") is None
    assert latest[0] is not None and latest[0].number == 3 and space.names(LEASES) == ["fleet.3"]
    latest[0].renew()
    assert not latest[0].lost


@pytest.mark.parametrize("failure", [OSError(5, "Input/output error"), ResultsError("no")])
def test_a_beat_that_fails_is_not_the_last(
    space: Storage, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    monkeypatch.setattr(module, "BEAT", 0.01)
    lease = Leases(space).claim("fleet")
    assert lease is not None
    failed, beaten = threading.Event(), threading.Event()

    def once() -> None:
        if not failed.is_set():
            failed.set()
            raise failure
        beaten.set()

    with lease.beating(once):
        assert beaten.wait(60)


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path) -> None:
    (tmp_path / "leases").write_text("a file where a folder should be")
    with pytest.raises(ResultsError, match="leases"):
        open_storage(tmp_path).names("leases")


def test_it_beats_and_tells_how_far_its_work_is(space: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT", 0.01)
    lease = Leases(space).claim("fleet")
    assert lease is not None
    beaten = threading.Event()
    with lease.beating(lambda: beaten.set() if lease.holder.share else None):
        lease.share = 0.25
        assert beaten.wait(60)
        holder = Leases(space).held()["fleet"]
        assert holder is not None and holder.share == 0.25 and holder.beat > 0
    assert not space.names(LEASES)


def test_what_nobody_claims_again_is_tidied(space: Storage) -> None:
    """Of processes that are gone: those of sweeps, and of fleets that have come to an end."""
    gone = replace(Holder.here(), process=DEAD)
    for what in ("sweep-1", "ended", "fleet"):
        left_by(space, gone, what)
    left_by(space, Holder.here(), "mine")
    for what in ("ended", "mine"):
        Outcome(DONE).save(space, what)
    Leases(space).tidy()
    assert space.names(LEASES) == ["fleet.1", "mine.1"]


def test_a_claim_removes_what_a_killed_one_has_left(tmp_path: Path) -> None:
    """Half a lease, under the name that it had before it had its own."""
    left = tmp_path / LEASES / f"fleet.1.{MACHINE_ID}-{DEAD}.tmp"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"{")
    assert Leases(open_storage(str(tmp_path))).claim("fleet") is not None and not left.exists()
