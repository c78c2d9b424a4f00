"""Sources to choose settings on: without test data, with other tasks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kenyon.data import (
    FIRST_SEED,
    SOURCES,
    Group,
    Ragged,
    RandomTest,
    RandomTestByOrigin,
    SearchProtocol,
    ShuffledClasses,
    Source,
    Stream,
    find_source,
    withheld,
)
from kenyon.data.holdout import REPORTED
from kenyon.data.tasks import CentreCrop
from kenyon.errors import ConfigError
from tests.data.test_source import make_source, names

HELD_OUT, SHORT = SearchProtocol("held-out", 0.25), SearchProtocol("short", 0.25)
search_seeds = st.integers(FIRST_SEED, FIRST_SEED + 1000)


def places(stream: Stream) -> list[list[int]]:
    """Return the positions of samples in the source, task by task, from their pixels."""
    return [
        [*part.images[:, 0, 0, 0].tolist()]
        for task in stream.tasks
        for part in (task.train, task.validation, task.test)
    ]


@settings(deadline=None, max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),  # fewer than 256 images
    fixed=st.integers(0, 3),
    seed=search_seeds,
    protocol=st.sampled_from([HELD_OUT, SHORT]),
    whole=st.booleans(),
)
def test_everything_is_training_data(
    sizes: list[int], fixed: int, seed: int, protocol: SearchProtocol, whole: bool
) -> None:
    source = make_source(sizes, fixed, per_class=12)
    assert isinstance(source.test, torch.Tensor)
    searched = withheld(source, protocol, whole=whole)
    assert isinstance(searched.images, torch.Tensor)
    for_training = torch.nonzero(~source.test).flatten().tolist()
    assert searched.images[:, 0, 0, 0].tolist() == for_training  # no other image is there at all
    stream = searched.stream(seed, validation=0.25)
    seen = [place for part in places(stream) for place in part]
    assert sorted(seen) == for_training  # each of them once
    assert sorted(c for task in stream.tasks for c in task.classes) == sorted(source.class_names)
    assert sorted(stream.class_counts) == sorted(sizes)
    for task in stream.tasks:
        count = len(task.train) + len(task.validation) + len(task.test)
        assert len(task.test) == len(task.validation) == round(0.25 * count)
        for part in (task.train, task.validation, task.test):
            shown = source.labels[part.images[:, 0, 0, 0].long()]
            assert [task.classes[i] for i in part.labels] == [source.class_names[i] for i in shown]


def test_what_the_seed_of_a_search_stands_for() -> None:
    """Tasks that keep their place exchange classes, and so do the others, by NumPy's default generator from
    (seed, 3, whether they keep it); a task is called after its first class.
    """
    searched = withheld(make_source([2, 1, 2, 3], fixed=2, per_class=12), HELD_OUT, whole=False)
    free = np.random.default_rng([FIRST_SEED, 3, 0]).permutation([3, 4, 5, 6, 7]).tolist()
    kept = np.random.default_rng([FIRST_SEED, 3, 1]).permutation([0, 1, 2]).tolist()
    dealt = searched.groups.deal(searched.class_names, FIRST_SEED)  # type: ignore[union-attr]
    assert [group.classes for group in dealt] == [tuple(kept[:2]), (kept[2],), tuple(free[:2]), tuple(free[2:])]
    assert [group.name for group in dealt] == [
        f"c{kept[0]} and 1 more",
        f"c{kept[2]}",
        f"c{free[0]} and 1 more",
        f"c{free[2]} and 2 more",
    ]
    assert [group.fixed for group in dealt] == [True, True, False, False]


def test_what_tests_show_and_say_changes_nothing() -> None:
    source = make_source([2] * 5, per_class=12)
    assert isinstance(source.images, torch.Tensor) and isinstance(source.test, torch.Tensor)
    images, labels = source.images.clone(), source.labels.clone()
    images[source.test] = 255
    labels[source.test] = labels[source.test].flip(0)
    poisoned = replace(source, images=images, labels=labels)
    for protocol in (HELD_OUT, SHORT):
        one, other = (withheld(s, protocol, whole=False).stream(FIRST_SEED) for s in (source, poisoned))
        assert places(one) == places(other) and names(one) == names(other)


def test_classes_are_dealt_anew() -> None:
    source = find_source("digits").load(None)
    pairs = {frozenset(task.classes) for task in source.stream(0).tasks}
    searched = withheld(source, HELD_OUT, whole=False)
    splits = [[frozenset(task.classes) for task in searched.stream(FIRST_SEED + fold).tasks] for fold in range(20)]
    assert len({frozenset(split) for split in splits}) > 15 and all(set(split) != pairs for split in splits)
    assert len(pairs & {pair for split in splits for pair in split}) < 5  # here and there one by chance


def test_tasks_that_keep_their_place_exchange_classes_among_each_other() -> None:
    """As those of CIFAR-10, before those of CIFAR-100."""
    source = make_source([3] * 6, fixed=2, per_class=12)
    first = {f"c{i}" for i in range(6)}
    dealt = set()
    for fold in range(10):
        stream = withheld(source, HELD_OUT, whole=False).stream(FIRST_SEED + fold)
        assert {c for task in stream.tasks[:2] for c in task.classes} == first
        dealt.add(stream.tasks[0].classes)
    assert len(dealt) > 5
    anywhere = [withheld(source, SHORT, whole=False).stream(FIRST_SEED + fold, tasks=2) for fold in range(10)]
    assert any(not first & set(task.classes) for stream in anywhere for task in stream.tasks)


@pytest.mark.parametrize("protocol", [HELD_OUT, SHORT])
def test_whole_tasks_come_in_another_order(protocol: SearchProtocol) -> None:
    """As Omniglot's alphabets, whose order is the same in all reported runs."""
    source = make_source([2, 3, 4, 1], fixed=4, per_class=12)
    groups = {group.name: group.classes for group in source.groups if isinstance(group, Group)}
    streams = [withheld(source, protocol, whole=True).stream(FIRST_SEED + fold) for fold in range(10)]
    for stream in streams:
        assert {task.name: task.classes for task in stream.tasks} == {
            name: tuple(f"c{i}" for i in classes) for name, classes in groups.items()
        }
    assert len({tuple(names(stream)) for stream in streams}) > 4


def test_which_tasks_are_whole() -> None:
    assert {name for name, spec in SOURCES.items() if spec.whole} == {"s-cifar-100", "omniglot", "omniglot-clean"}


def test_classes_that_the_seed_deals_are_dealt_by_the_searchs_seed() -> None:
    source = replace(make_source([1] * 6, per_class=12), groups=ShuffledClasses(3))
    searched = withheld(source, HELD_OUT, whole=False)
    assert [task.classes for task in searched.stream(FIRST_SEED).tasks] == [
        task.classes for task in source.stream(FIRST_SEED).tasks
    ]


@pytest.mark.parametrize("by_origin", [False, True])
def test_drawn_tests_of_reported_runs_are_left_out(by_origin: bool) -> None:
    source = make_source([2, 3], per_class=50)
    origin = torch.arange(250) % 25
    source = replace(source, test=RandomTestByOrigin(origin) if by_origin else RandomTest())
    tested = {i for seed in range(REPORTED) for task in source.stream(seed).tasks for i in task.test.index.tolist()}
    searched = withheld(source, HELD_OUT, whole=False)
    assert isinstance(searched.images, torch.Tensor)
    assert set(searched.images[:, 0, 0, 0].tolist()) == set(range(250)) - tested
    for task in searched.stream(FIRST_SEED, validation=0.2).tasks if by_origin else ():
        parts = [set(origin[s.images[:, 0, 0, 0].long()].tolist()) for s in (task.train, task.validation, task.test)]
        assert sum(map(len, parts)) == len(set.union(*parts))  # no sample is on two sides


def test_parts_of_one_origin_stay_together() -> None:
    origin = torch.arange(144) // 12 % 4
    source = replace(make_source([2] * 6, per_class=12), origin=origin)
    for task in withheld(source, HELD_OUT, whole=False).stream(FIRST_SEED, validation=0.0).tasks:
        learned, scored = (set(origin[s.images[:, 0, 0, 0].long()].tolist()) for s in (task.train, task.test))
        assert learned and scored and not learned & scored


def test_images_of_unequal_sizes() -> None:
    height, width = torch.tensor([1, 2, 3, 1, 2, 3, 1, 2]), torch.tensor([2, 2, 1, 1, 3, 2, 2, 1])
    sizes = height * width
    shown = torch.arange(8).repeat_interleave(sizes).to(torch.uint8).unsqueeze(1)
    source = Source(
        name="ragged",
        images=Ragged(shown, sizes.cumsum(0) - sizes, height, width),
        labels=torch.arange(8) % 2,
        test=torch.arange(8) < 2,
        class_names=("a", "b"),
        groups=(Group("t", (0, 1)),),
        mean=(0.0,),
        std=(1.0,),
        testing=CentreCrop(1),
    )
    pool = withheld(source, HELD_OUT, whole=False).images
    assert isinstance(pool, Ragged) and [pool[i].unique().tolist() for i in range(len(pool))] == [
        [i] for i in range(2, 8)
    ]
    assert [tuple(pool[i].shape[1:]) for i in range(2)] == [(3, 1), (1, 1)]


@pytest.mark.parametrize("share", [0.0, 1.0, -0.2, float("nan"), 1])
def test_impossible_shares_are_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        SearchProtocol("short", share)


def test_unknown_protocols_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no search protocol called 'heldout'.*held-out"):
        SearchProtocol("heldout")  # type: ignore[arg-type]
