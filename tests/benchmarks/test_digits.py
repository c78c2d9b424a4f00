from __future__ import annotations

import torch

from kenyon.data import find_source


def test_digits_are_what_the_catalog_says() -> None:
    spec = find_source("digits")
    source = spec.load(None)
    stream = source.stream(0)
    assert stream.input_shape == spec.shape
    assert stream.class_counts == spec.class_counts
    assert {task.classes for task in stream.tasks} == {(str(d), str(d + 1)) for d in range(0, 10, 2)}
    assert len(source.images) == 1797
    assert int(source.images.max()) == 255


def test_every_digit_is_in_every_split() -> None:
    for task in find_source("digits").load(None).stream(3, validation=0.2).tasks:
        for split in (task.train, task.validation, task.test):
            assert set(split.labels.tolist()) == {0, 1}
        in_all = len(task.train) + len(task.validation) + len(task.test)
        assert abs(len(task.test) / in_all - 0.8) < 0.01


def test_mean_and_deviation_are_those_of_the_pixels() -> None:
    source = find_source("digits").load(None)
    pixels = source.images[~source.test].to(torch.float64) / 255
    assert abs(float(pixels.mean()) - source.mean[0]) < 5e-3
    assert abs(float(pixels.std()) - source.std[0]) < 5e-3
