from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kenyon.data import (
    SOURCES,
    CentreCrop,
    Group,
    Ragged,
    RandomTest,
    RandomTestByOrigin,
    ShuffledClasses,
    Source,
    Stream,
    find_source,
)
from kenyon.errors import ConfigError, DataError, KenyonError

seeds = st.integers(0, 2**32)


def make_source(sizes: list[int], fixed: int = 0, per_class: int = 6, test_every: int = 3) -> Source:
    """Tasks of the given numbers of classes; each image's first pixel is its position in the pool."""
    classes = sum(sizes)
    labels = torch.arange(classes * per_class) % classes
    images = torch.arange(len(labels)).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous()
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return Source(
        name="made",
        images=images,
        labels=labels,
        test=torch.arange(len(labels)) // classes % test_every == 0,
        class_names=tuple(f"c{i}" for i in range(classes)),
        groups=tuple(
            Group(f"t{i}", tuple(range(start, start + size)), fixed=i < fixed)
            for i, (start, size) in enumerate(zip(starts, sizes, strict=True))
        ),
        mean=(0.5,),
        std=(0.5,),
    )


def names(stream: Stream) -> list[str]:
    return [task.name for task in stream.tasks]


@settings(deadline=None, max_examples=50)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6), seed=seeds, validation=st.floats(0.26, 0.7))
def test_splits_are_disjoint_and_cover_everything(sizes: list[int], seed: int, validation: float) -> None:
    source = make_source(sizes)
    stream = source.stream(seed, validation=validation)
    seen: list[int] = []
    for task in stream.tasks:
        for split in (task.train, task.validation, task.test):
            seen += split.index.tolist()
            assert int(split.labels.min()) >= 0 and int(split.labels.max()) < len(task.classes)
            true_names = [source.class_names[i] for i in source.labels[split.index]]
            assert [task.classes[i] for i in split.labels] == true_names
            assert torch.equal(split.images[:, 0, 0, 0].long(), split.index)
        assert source.test[task.test.index].all()
        assert not source.test[torch.cat([task.train.index, task.validation.index])].any()
        assert len(task.validation) == int(validation * (len(task.train) + len(task.validation)))
    assert sorted(seen) == list(range(len(source.images)))
    assert sorted(names(stream)) == sorted(group.name for group in source.groups)
    assert stream.class_counts == tuple(len(task.classes) for task in stream.tasks)


@settings(deadline=None, max_examples=20)
@given(seed=seeds)
def test_the_same_seed_gives_the_same_stream(seed: int) -> None:
    one, other = (make_source([2] * 5).stream(seed, validation=0.3) for _ in range(2))
    for left, right in zip(one.tasks, other.tasks, strict=True):
        assert left.name == right.name
        for part in ("train", "validation", "test"):
            assert torch.equal(getattr(left, part).index, getattr(right, part).index)


def test_seeds_give_different_orders_and_validation_sets() -> None:
    source = make_source([2] * 8)
    streams = [source.stream(seed, validation=0.3) for seed in range(20)]
    assert len({tuple(names(stream)) for stream in streams}) > 15
    held_out = {
        tuple(sorted(task.validation.index.tolist()))
        for stream in streams
        for task in stream.tasks
        if task.name == "t0"
    }
    assert len(held_out) > 5


def test_tasks_of_equal_size_draw_their_own_validation_sets() -> None:
    """Each from (seed, task): which of a task's samples are held out tells nothing of another task's."""
    source = make_source([2] * 8, per_class=30)
    drawn = set()
    for task in source.stream(0, validation=0.3).tasks:
        own = torch.cat([task.train.index, task.validation.index]).sort().values
        drawn.add(tuple(torch.searchsorted(own, task.validation.index).tolist()))
    assert len(drawn) == 8


@pytest.mark.parametrize("seed", [0, 1, 17])
def test_what_a_seed_stands_for(seed: int) -> None:
    """Results name their streams by seeds, so a seed stands for the same stream in every version: NumPy's default
    generator from (seed, 0) orders the tasks, from (seed, 1, task) the samples of a task, of which the first are held
    out, and from (seed, 2) deals out classes.
    """
    source = make_source([2] * 6, per_class=10)
    stream = source.stream(seed, validation=0.25)
    order = np.random.default_rng([seed, 0]).permutation(6)
    assert names(stream) == [f"t{i}" for i in order]
    for number, task in zip(order, stream.tasks, strict=True):
        own = torch.nonzero((source.labels // 2 == number) & ~source.test).flatten()
        drawn = own[np.random.default_rng([seed, 1, number]).permutation(len(own))]
        held_out = len(own) // 4
        assert torch.equal(task.validation.index, drawn[:held_out])
        assert torch.equal(task.train.index, drawn[held_out:])
    dealt = with_fields(source, groups=ShuffledClasses(3)).stream(seed, validation=0.25)
    classes = [f"c{c}" for c in np.random.default_rng([seed, 2]).permutation(12)]
    assert [task.classes for task in dealt.tasks] == [tuple(classes[i : i + 4]) for i in (0, 4, 8)]


@settings(deadline=None, max_examples=30)
@given(fixed=st.integers(0, 6), seed=seeds, tasks=st.integers(1, 6))
def test_fixed_groups_stay_and_fewer_tasks_are_a_prefix(fixed: int, seed: int, tasks: int) -> None:
    source = make_source([1] * 6, fixed=fixed, per_class=12)
    whole = names(source.stream(seed, validation=0.3))
    assert whole[:fixed] == [f"t{i}" for i in range(fixed)]
    assert names(source.stream(seed, tasks=tasks, validation=0.3)) == whole[:tasks]


@pytest.mark.parametrize("tasks", [0, -1, 4])
def test_impossible_numbers_of_tasks_are_refused(tasks: int) -> None:
    with pytest.raises(ConfigError, match=f"3 tasks.*--tasks {tasks} "):
        make_source([2] * 3).stream(0, tasks=tasks)


@pytest.mark.parametrize("validation", [1.0, -0.1, 2.0, float("nan")])
def test_impossible_validation_shares_are_refused(validation: float) -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        make_source([2] * 3).stream(0, validation=validation)


def with_fields(source: Source, **changes: object) -> Source:
    fields = {name: getattr(source, name) for name in source.__dataclass_fields__}
    return Source(**(fields | changes))  # type: ignore[arg-type]


@settings(deadline=None, max_examples=30)
@given(seed=seeds, tasks=st.sampled_from([1, 2, 3, 6]))
def test_shuffled_classes_are_all_dealt_out(seed: int, tasks: int) -> None:
    source = with_fields(make_source([1] * 6), groups=ShuffledClasses(tasks))
    stream = source.stream(seed, validation=0.3)
    assert stream.class_counts == (6 // tasks,) * tasks
    assert sorted(name for task in stream.tasks for name in task.classes) == sorted(source.class_names)
    first = source.stream(seed, tasks=1, validation=0.3).tasks[0]
    assert first.classes == stream.tasks[0].classes
    assert torch.equal(first.train.index, stream.tasks[0].train.index)


def test_classes_that_make_no_equal_tasks_are_refused() -> None:
    with pytest.raises(DataError, match="6 classes do not make 4 equal tasks"):
        with_fields(make_source([1] * 6), groups=ShuffledClasses(4))


@settings(deadline=None, max_examples=30)
@given(seed=seeds, by_origin=st.booleans(), validation=st.sampled_from([0.0, 0.1, 0.25]))
def test_drawn_tests_cover_everything_once(seed: int, by_origin: bool, validation: float) -> None:
    source = make_source([2, 3], per_class=40)
    origin = torch.arange(len(source.labels)) // 5 % 20
    rule = RandomTestByOrigin(origin, 0.1) if by_origin else RandomTest(0.1)
    stream = with_fields(source, test=rule).stream(seed, validation=validation)
    seen: list[int] = []
    for task in stream.tasks:
        parts = [split.index for split in (task.train, task.validation, task.test)]
        samples = sum(map(len, parts))
        assert len(parts[2]) == samples // 10 and len(parts[1]) == round(validation * samples)
        seen += torch.cat(parts).tolist()
        if by_origin:
            people = [set(origin[part].tolist()) for part in parts]
            assert sum(map(len, people)) == len(set.union(*people))
    assert sorted(seen) == list(range(len(source.labels)))


def test_a_ragged_pool_needs_a_view_and_sane_tables() -> None:
    source = with_fields(
        make_source([2]), images=torch.zeros(12, 3, 1, 1, dtype=torch.uint8), mean=(0.5,) * 3, std=(0.5,) * 3
    )
    count = len(source.labels)
    sizes = torch.arange(count) % 3 + 1
    starts = (sizes * sizes).cumsum(0) - sizes * sizes
    pixels = torch.zeros(int((sizes * sizes).sum()), 3, dtype=torch.uint8)
    pool = Ragged(pixels, starts, sizes, sizes)
    with pytest.raises(DataError, match="testing"):
        with_fields(source, images=pool)
    stream = with_fields(source, images=pool, testing=CentreCrop(5)).stream(0, validation=0.3)
    assert stream.input_shape == (3, 5, 5) and stream.pool is pool and pool[4].shape == (3, 2, 2)
    with pytest.raises(DataError, match="one by one"):
        _ = stream.tasks[0].train.images
    moved = pool.to(torch.device("cpu"))
    assert len(moved) == count and all(torch.equal(moved[i], pool[i]) for i in range(count))
    for bad in (
        (pixels.float(), starts, sizes, sizes),
        (pixels[:-1], starts, sizes, sizes),
        (pixels, starts - 1, sizes, sizes),
        (pixels, starts, sizes - 1, sizes),
        (pixels, starts[1:], sizes, sizes),
    ):
        with pytest.raises(DataError, match="unequal sizes"):
            Ragged(*bad)


def test_tasks_that_are_parts_need_a_source_with_parts() -> None:
    source = with_fields(make_source([2], per_class=12), groups=(Group("early", (0, 1), part=0),))
    with pytest.raises(DataError, match="task 'early' is a part of a source that has none"):
        source.stream(0, validation=0.3)
    part = torch.arange(24) // 12
    [task] = with_fields(source, part=part).stream(0, validation=0.3).tasks
    assert not part[torch.cat([task.train.index, task.validation.index, task.test.index])].any()
    assert len(task.train) + len(task.validation) + len(task.test) == 12


def test_a_validation_share_of_nothing_holds_nothing_out() -> None:
    for task in make_source([2] * 3).stream(0, validation=0.0).tasks:
        assert len(task.validation) == 0 and len(task.train) == 8 and len(task.test) == 4


def test_a_validation_share_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="no validation samples"):
        make_source([2] * 3).stream(0, validation=0.01)


def test_samples_of_another_kind_or_number_are_refused() -> None:
    good = make_source([2])
    fields = {name: getattr(good, name) for name in good.__dataclass_fields__}
    short = torch.zeros(len(good.labels) - 1, dtype=torch.long)
    for change, said in (
        ({"images": good.images.double()}, "made"),
        ({"labels": good.labels[1:]}, "samples and .* labels differ"),
        ({"test": good.test[1:]}, "labels and the test mask differ"),
        ({"part": short}, "labels and parts differ"),
        ({"origin": short}, "labels and origins differ"),
        ({"labels": good.labels + 1}, "labels must run from 0 to 1"),
        ({"labels": good.labels - 1}, "labels must run from 0 to 1"),
    ):
        with pytest.raises(DataError, match=said):
            Source(**(fields | change))


def test_sources_are_known_by_name() -> None:
    known = {"digits", "r-cifar-100", "s-cifar-100", "r-cifar-10-100", "omniglot", "omniglot-clean"}
    assert known | {"cub-200", "tiny-imagenet", "core50"} <= set(SOURCES)
    assert (
        find_source("omniglot").class_counts[:3] == (20, 29, 26) and sum(find_source("omniglot").class_counts) == 1623
    )
    assert find_source("digits").needs == ()
    assert find_source("r-cifar-10-100").class_counts == (5,) * 22
    with pytest.raises(KenyonError, match="digits"):
        find_source("digitz")
