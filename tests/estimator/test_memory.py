"""Memory of `fit` beyond its data, and memory that stays when it returns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kenyon import ContinualLearner
from kenyon.data.arrays import moments

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")

SIDE, SAMPLES = 32, 16384  # 48 MiB of bytes
BATCHES = 36  # MiB for batches and what networks make of them, whatever the data
FIT = """
import sys
import numpy as np, torch
from torch import nn
from kenyon import ContinualLearner
from tests.memory import peak

path, shape = sys.argv[1], (int(sys.argv[2]), 3, int(sys.argv[3]), int(sys.argv[3]))
torch.set_num_threads(1)
file = np.memmap(path, np.uint8, "r", shape=shape)
labels = np.arange(shape[0]) % 2

def backbone():
    return nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(12, 4))

def learner():
    return ContinualLearner(backbone, "finetune", epochs=1, batch=512, device="cpu")

small = np.arange(64, dtype=np.uint8)[:, None, None, None] + np.zeros((1, *shape[1:]), np.uint8)
learner().fit(small, labels[:64])  # whatever is loaded once
for kind, data in (
    ("memmap", file),
    ("tensor", torch.from_file(path, shared=False, size=int(np.prod(shape)), dtype=torch.uint8).view(shape)),
    ("array", np.array(file)),
):
    one = learner()
    for task in ("first", "second")[: 2 if kind == "memmap" else 1]:
        with peak() as used:
            one.fit(data, labels, task=task)
        print(kind, used.mib, used.left)
"""


def test_bytes_are_held_once(tmp_path: Path) -> None:
    """Once as the network reads them, as bytes. Nothing of it stays, before the garbage collector has come."""
    path = tmp_path / "pixels"
    pixels = np.memmap(path, np.uint8, "w+", shape=(SAMPLES, 3, SIDE, SIDE))
    pixels[:] = np.arange(SAMPLES, dtype=np.uint8)[:, None, None, None]
    pixels.flush()
    command = [sys.executable, "-c", FIT, str(path), str(SAMPLES), str(SIDE)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    size = pixels.nbytes / 2**20
    assert [line.split()[0] for line in said] == ["memmap", "memmap", "tensor", "array"]
    for line in said:
        used, left = map(float, line.split()[1:])
        assert used < size + BATCHES and left < 0.1 * size, said


@given(
    shape=st.tuples(st.integers(1, 300), st.integers(1, 3), st.integers(1, 20), st.integers(1, 20)),
    threads=st.integers(1, 3),
    laid=st.sampled_from([(0, 1, 2, 3), (0, 3, 1, 2), (3, 1, 0, 2)]),
)
@settings(max_examples=60, deadline=None)
def test_moments_are_pytorchs_to_the_bit(shape: tuple[int, ...], threads: int, laid: tuple[int, ...]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        generator = torch.Generator().manual_seed(sum(shape))
        drawn = torch.randint(256, [shape[place] for place in laid], generator=generator, dtype=torch.uint8)
        pool = drawn.permute([laid.index(axis) for axis in range(4)])
        mean, std = moments(pool)
        for channel, m, s in zip(pool.movedim(1, 0), mean, std, strict=True):
            assert m == float(channel.mean(dtype=torch.float64)) / 255
            spread = float(channel.double().std(correction=0))
            assert s == (spread / 255 if spread else 1.0)
    finally:
        torch.set_num_threads(before)


def test_memory_that_may_only_be_read_is_as_good(tmp_path: Path) -> None:
    """Without a warning of PyTorch's, which is an error here."""
    x = np.random.default_rng(0).integers(0, 256, (20, 3, 4, 4), dtype=np.uint8)
    np.save(tmp_path / "x.npy", x)
    labels, found = np.arange(20) % 2, []
    for given_ in (x, np.load(tmp_path / "x.npy", mmap_mode="r")):
        learner = ContinualLearner(method="finetune", epochs=1, device="cpu").fit(given_, labels)
        found.append(learner.predict_proba(given_))
    assert np.array_equal(*found)
