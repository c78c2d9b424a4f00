"""Streams from arrays: the cut decides the task of every sample, for any labels and seeds; bad input is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kenyon.data import Classes, Domains, Groups, Stream, Times, from_arrays
from kenyon.errors import ConfigError, DataError

RNG = np.random.default_rng(0)


def table(count: int = 60, classes: int = 4) -> tuple[Any, Any]:
    """The first number of each sample is unique and identifies it."""
    x = RNG.normal(size=(count, 3))
    x[:, 0] = np.arange(count)
    return x, np.arange(count) % classes


def places(stream: Stream, task: int, part: str) -> list[int]:
    return sorted(getattr(stream.tasks[task], part).index.tolist())


@settings(max_examples=25, deadline=None)
@given(
    tasks=st.integers(1, 4),
    each=st.integers(2, 3),
    per_class=st.integers(8, 12),
    seed=st.integers(0, 99),
    strings=st.booleans(),
)
def test_classes_make_tasks(tasks: int, each: int, per_class: int, seed: int, strings: bool) -> None:
    classes = tasks * each
    numbers = np.random.default_rng(seed).permutation(np.arange(classes * per_class) % classes)
    y = np.array([f"class {c:02}" for c in numbers]) if strings else numbers * 7 - 3
    stream = from_arrays(np.arange(len(y), dtype=float)[:, None], y, Classes(each)).stream(seed, validation=0.2)
    assert stream.class_counts == (each,) * tasks and stream.heads == "task"
    met: list[int] = []
    for task in stream.tasks:
        for split in (task.train, task.validation, task.test):
            for index, label in zip(split.index.tolist(), split.labels.tolist(), strict=True):
                assert task.classes[label] == str(y[index])
            met += split.index.tolist()
        assert len(task.test) == round(0.2 * each * per_class)
    assert sorted(met) == list(range(len(y)))  # each sample once
    names = [str(label) for label in np.unique(y)]
    expected = {tuple(names[start : start + each]) for start in range(0, classes, each)}
    assert {task.classes for task in stream.tasks} == expected


@settings(max_examples=25, deadline=None)
@given(parts=st.integers(1, 5), count=st.integers(40, 80), seed=st.integers(0, 9))
def test_times_are_consecutive_parts_in_their_order(parts: int, count: int, seed: int) -> None:
    x, y = table(count, 2)
    stream = from_arrays(x, y, Times(parts)).stream(seed)
    expected = np.array_split(np.arange(count), parts)
    assert stream.heads == "shared" and stream.class_counts == (2,) * parts
    for task, mine in zip(stream.tasks, expected, strict=True):
        found = torch.cat([task.train.index, task.validation.index, task.test.index])
        assert sorted(found.tolist()) == mine.tolist() and task.classes == ("0", "1")


def test_times_between_boundaries() -> None:
    x, y = table(30, 2)
    stream = from_arrays(x, y, Times([5, 20])).stream(0, validation=0.2)
    assert [len(t.train) + len(t.validation) + len(t.test) for t in stream.tasks] == [5, 15, 10]
    assert stream.tasks[1].name == "samples 5 to 19"


def test_groups_name_their_classes_and_leave_out_others() -> None:
    x, y = table(60, 6)
    stream = from_arrays(x, y, Groups({"low": [1, 0], "high": [5, 4, 2]})).stream(3)
    assert [task.name for task in stream.tasks] == ["low", "high"]  # unequal tasks keep their order
    assert [task.classes for task in stream.tasks] == [("1", "0"), ("5", "4", "2")]
    assert all((y[i] != 3) for task in stream.tasks for i in task.train.index.tolist())


def test_domains_share_their_classes_and_the_seed_shuffles_them() -> None:
    x, y = table(60, 3)
    of = np.array(["north", "south", "east"])[np.arange(60) // 3 % 3]
    orders = set()
    for seed in range(6):
        stream = from_arrays(x, y, Domains(of)).stream(seed, validation=0.2)
        orders.add(tuple(task.name for task in stream.tasks))
        for t, task in enumerate(stream.tasks):
            assert {of[i] for i in places(stream, t, "train") + places(stream, t, "test")} == {task.name}
    assert len(orders) > 2
    still = {tuple(t.name for t in from_arrays(x, y, Domains(of), ordered=True).stream(s).tasks) for s in range(4)}
    assert still == {("east", "north", "south")}


def test_given_test_and_validation_parts_are_kept() -> None:
    x, y = table(60, 4)
    test, validation = np.arange(60) % 5 == 0, np.arange(60) % 5 == 1
    for seed in (0, 1):
        stream = from_arrays(x, y, ordered=True, test=test, validation=torch.from_numpy(validation)).stream(seed)
        for t in (0, 1):
            assert all(test[places(stream, t, "test")]) and all(validation[places(stream, t, "validation")])
            assert not any((test | validation)[places(stream, t, "train")])
    drawn = from_arrays(x, y, ordered=True, test=0.25, validation=validation)
    one, two = (drawn.stream(seed) for seed in (0, 1))
    assert places(one, 0, "validation") == places(two, 0, "validation")
    assert places(one, 0, "test") != places(two, 0, "test") and len(one.tasks[0].test) == 6


def test_values_are_normalised_by_what_does_not_test() -> None:
    x, y = table(60, 4)
    x[:, 2] = 7.0
    test = np.arange(60) >= 48
    source = from_arrays(x, y, test=test)
    np.testing.assert_allclose(source.mean, x[:48].mean(0), rtol=1e-5)
    np.testing.assert_allclose(source.std[:2], x[:48].std(0)[:2])
    assert source.std[2] == 1.0
    assert from_arrays(x, y, normalise=False).mean == ()
    images = RNG.integers(0, 256, (60, 2, 4, 4)).astype(np.uint8)
    pictures = from_arrays(images, y)
    np.testing.assert_allclose(pictures.mean, images.mean((0, 2, 3)) / 255)
    assert from_arrays(images, y, normalise=False).std == (1.0, 1.0)
    tokens = from_arrays(RNG.integers(0, 9, (60, 5)), y)
    assert tokens.mean == () and tokens.stream(0).input_dtype == torch.int64


def test_what_varies_is_judged_by_its_size() -> None:
    """A column of tiny numbers has its own spread; of large ones that are equal, rounding is none."""
    x, y = np.arange(60.0)[:, None].repeat(3, 1) % 7, np.arange(60) % 2
    x[:, 1] *= 1e-12
    x[:, 2] = 0.1 + 1e6
    source = from_arrays(x, y)
    np.testing.assert_allclose(source.std, [x[:, 0].std(), x[:, 1].std(), 1.0], rtol=1e-6)


def blank(**changes: Any) -> None:
    x, y = table()
    from_arrays(**{"x": x, "y": y} | changes).stream(0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": np.zeros((59, 3))}, "x has 59 samples and y 60 labels"),
        ({"x": np.full((60, 3), np.inf)}, "sample 0 has values that are NaN or infinite"),
        ({"x": np.array([["a"] * 3] * 60)}, "array of numbers"),
        ({"x": np.zeros((60, 3), dtype=np.complex64)}, "complex numbers. Give their real and imaginary parts"),
        ({"x": torch.zeros(60, 3, dtype=torch.complex128)}, "complex numbers"),
        ({"x": np.zeros(60)}, "Add an axis"),
        ({"x": [[1.0], [1.0, 2.0]] * 30}, "Bring all samples to one shape"),
        ({"y": np.zeros(60)}, "integers or strings, not float64"),
        ({"y": [None] * 60}, "integers or strings, not NoneType"),
        ({"y": np.zeros((60, 2), dtype=int)}, r"one a sample, \(N,\), not of the shape \(60, 2\)"),
        ({"y": np.zeros(60, dtype=int)}, "all samples have the class 0"),
        ({"x": np.zeros((0, 3)), "y": []}, "There are no labels"),
        ({"by": Classes(3)}, "4 classes do not make tasks of 3"),
        ({"by": Classes(1)}, "at least two classes"),
        ({"by": Classes(2.0)}, r"number of classes a task, a whole number, not 2\.0"),  # type: ignore[arg-type]
        ({"by": Classes("2")}, "a whole number, not '2'"),  # type: ignore[arg-type]
        ({"by": Classes(True)}, "a whole number, not True"),
        ({"by": Groups([[0, 1], [2, 9]])}, "Task 2 names the class 9"),
        ({"by": Groups([[0, 1], [1, 2]])}, "class 1 is in task 1 and in task 2"),
        ({"by": Groups([[0, 1], [2]])}, "Task 2 has 1 classes"),
        ({"by": Times(0)}, "60 samples do not make 0 parts"),
        ({"by": Times(61)}, "60 samples do not make 61 parts"),
        ({"by": Times(2.5)}, r"whole number of parts, or a list of boundaries, not 2\.5"),  # type: ignore[arg-type]
        ({"by": Times(True)}, "a list of boundaries, not True"),
        ({"by": Times("20")}, "Boundaries must rise"),  # type: ignore[arg-type]
        ({"by": Times([20, 20])}, "Boundaries must rise"),
        ({"by": Times([20, 60])}, "Boundaries must rise"),
        ({"by": Times([0.5])}, "Boundaries must rise, whole numbers"),
        ({"x": np.zeros((60, 8, 9, 3), dtype=np.uint8)}, r"channels last. Move them: numpy.moveaxis\(x, -1, 1\)"),
        ({"by": Domains([0, 1] * 30)}, "The domain 0 has no samples of the class 1"),
        ({"by": Domains([0] * 59)}, "60 labels and 59 domains"),
        ({"test": 1.5}, "share between 0 and 1"),
        ({"test": np.zeros(60)}, "60 bools"),
        ({"test": np.zeros(59, dtype=bool)}, r"60 bools, one a sample, not \(59,\)"),
        ({"validation": np.zeros((60, 1), dtype=bool)}, r"60 bools, one a sample, not \(60, 1\)"),
        ({"test": np.ones(60, dtype=bool)}, "all samples are for test"),
        ({"test": np.zeros(60, dtype=bool)}, "has no test samples"),
        ({"test": np.arange(60) < 9, "validation": np.arange(60) < 9}, "for test and for validation"),
        ({"validation": np.zeros(60, dtype=bool)}, "has no validation samples"),
    ],
)
def test_bad_input_is_told(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        blank(**changes)


def test_labels_that_are_objects_are_what_they_are() -> None:
    y = np.arange(60) % 4
    for labels in (y.astype(object), np.array(["a", "b", "c", "d"], dtype=object)[y]):
        source = from_arrays(np.zeros((60, 3)), labels, Classes(2))
        assert torch.equal(source.labels, torch.from_numpy(y)) and len(source.class_names) == 4


def test_truths_are_classes_by_their_names() -> None:
    x, truths = np.zeros((60, 3)), np.arange(60) % 2 > 0
    for labels in (truths, truths.astype(object), truths.tolist(), torch.from_numpy(truths)):
        source = from_arrays(x, labels, Groups([[True, False]]))
        assert source.class_names == ("False", "True") and source.labels.tolist() == truths.tolist()


def test_whole_numbers_of_any_size_keep_their_order() -> None:
    large, places = np.array([2**63 + 1, 1, 2**64 - 1, 2**63], dtype=np.uint64), np.arange(60) % 4
    for labels in (large[places], large[places].astype(object)):
        source = from_arrays(np.zeros((60, 3)), labels, Groups([[1, 2**63], [2**63 + 1, 2**64 - 1]]))
        assert source.class_names == ("1", str(2**63), str(2**63 + 1), str(2**64 - 1))
        assert source.labels[:4].tolist() == [2, 0, 3, 1]


def test_cuts_take_numbers_of_numpy() -> None:
    x, y = table()
    four, two = np.int64(4), np.int64(2)
    for by, same in ((Times(four), Times(4)), (Classes(two), Classes(2)), (Times([np.int64(30)]), Times([30]))):
        assert from_arrays(x, y, by).groups == from_arrays(x, y, same).groups


def test_images_of_two_channels_and_a_few_pixels_are_images() -> None:
    for shape in ((60, 2, 4, 4), (60, 3, 32, 3), (60, 16, 4, 4)):
        assert from_arrays(np.zeros(shape, dtype=np.uint8), np.arange(60) % 2).images.shape == shape


def test_tasks_are_cut_by_a_cut() -> None:
    with pytest.raises(ConfigError, match=r"by must be a cut into tasks, such as Classes\(2\).*not 2"):
        from_arrays(np.zeros((8, 3)), np.arange(8) % 4, 2)  # type: ignore[arg-type]
