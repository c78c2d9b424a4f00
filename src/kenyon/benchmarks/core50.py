"""CORe50: 50 objects held in a hand and filmed in 11 places, in 10 tasks of 5 that the seed draws.

Sessions 3, 7 and 10 test and the others train, as the dataset's authors propose and as in the paper's code. In its
lists, objects are in their given order (each task is one category); the paper's text says that tasks are split at
random.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from PIL import Image

from kenyon.benchmarks.cub import LARGE_IMAGES
from kenyon.benchmarks.registry import benchmark
from kenyon.benchmarks.strengths import complete
from kenyon.data.sources import ShuffledClasses, Source
from kenyon.datasets.archives import CORE50, Copy, data_folders, find
from kenyon.datasets.cache import cached
from kenyon.datasets.images import File, Picture, as_bytes, fingerprint, require_size, write_equal
from kenyon.errors import DataError
from kenyon.models import alexnet

OBJECTS, SESSIONS, TASKS, SIDE = 50, 11, 10, 84
FULL = 128  # pixels of a side in the dataset's files
FRAME = re.compile(r"C_(\d+)_(\d+)_\d+\.png", re.IGNORECASE)
TEST_SESSIONS = (3, 7, 10)
CATEGORIES = (
    *("plug adapter", "mobile phone", "scissors", "light bulb", "can"),
    *("glasses", "ball", "marker", "cup", "remote control"),
)
HALF = (0.5, 0.5, 0.5)  # mean and standard deviation: pixels run from -1 to 1


# Supplementary Section 2.3 has values of EWC, MAS and CAF alone, and grids of their strengths and of what CAF adds to
# them. SI has that of CUB-200; the other methods take theirs from `--set`.
STRENGTHS = complete(
    {
        "ewc": {"lambda_sp": 100},
        "mas": {"lambda_sp": 0.01},
        "si": {"lambda_sp": 0.4},
        "caf-ewc": {"lambda_sp": 100, "lambda_af": 1e-6, "gamma": 0.1},
        "caf-mas": {"lambda_sp": 0.01, "lambda_af": 1e-6, "gamma": 0.1},
    },
    fisher="core50",
    omega="core50",
    afs="uniform",
)
for _values in STRENGTHS.values():
    if "omega" in _values:
        _values["accumulate"] = "average"
CAF_TRIED = {"lambda_af": (1e-8, 1e-7, 1e-6, 1e-5), "gamma": (0.001, 0.01, 0.1, 1)}


@benchmark(
    backbone=alexnet,
    width=64,
    training=replace(LARGE_IMAGES, batch=32, rate=0.003, drop=1.0, momentum=0.0, penalties_from=2),
    class_counts=(OBJECTS // TASKS,) * TASKS,
    shape=(3, SIDE, SIDE),
    needs=("core50",),
    hyperparameters=STRENGTHS,
    tried={
        "ewc": {"lambda_sp": (1, 10, 100, 1000)},
        "mas": {"lambda_sp": (0.001, 0.01, 0.1, 1)},
        "caf-ewc": CAF_TRIED,
        "caf-mas": CAF_TRIED,
    },
    cite="Lomonaco and Maltoni, CoRL 2017",
)
def core50(data: Path | None = None) -> Source:
    """50 things held in a hand and filmed in 11 places, dealt by the seed to 10 tasks of 5."""
    copy = find(CORE50, data_folders(data))
    identity = {"what": "core50", "making": [1, SIDE], "files": fingerprint(copy.trees, _is_frame)}
    found = cached("core50", identity, lambda file: _build(file, copy))
    counts = torch.tensor(found.facts["counts"])  # (OBJECTS, SESSIONS)
    films = torch.arange(counts.numel()).repeat_interleave(counts.flatten())
    each = OBJECTS // len(CATEGORIES)
    return Source(
        name="core50",
        images=torch.from_numpy(found.pixels).view(-1, SIDE, SIDE, 3).permute(0, 3, 1, 2),
        labels=films // SESSIONS,
        test=torch.isin(films % SESSIONS + 1, torch.tensor(TEST_SESSIONS)),
        class_names=tuple(f"{category} {i + 1}" for category in CATEGORIES for i in range(each)),
        groups=ShuffledClasses(TASKS),
        mean=HALF,
        std=HALF,
        origin=films % SESSIONS,  # consecutive frames of a film are almost the same image
    )


def _build(file: IO[bytes], copy: Copy) -> dict[str, Any]:
    [tree] = copy.trees
    films: dict[str, list[File]] = {}
    for name in tree.names():
        if not _is_frame(name):
            continue
        film, _, frame = name.rpartition("/")
        if not (match := FRAME.fullmatch(frame)) or film != f"s{int(match[1])}/o{int(match[2])}":
            raise DataError(
                f"{tree.where(name)} is no frame of that film: their names are C_SESSION_OBJECT_NUMBER.png. "
                f"{tree.remedy}"
            )
        films.setdefault(film, []).append((tree, name))
    files: list[File] = []
    counts = [[0] * SESSIONS for _ in range(OBJECTS)]
    for thing in range(OBJECTS):
        for session in range(SESSIONS):
            frames = films.get(f"s{session + 1}/o{thing + 1}", [])
            if not frames:
                raise DataError(f"{tree.where(f's{session + 1}/o{thing + 1}')} holds no images. {tree.remedy}")
            files += frames
            counts[thing][session] = len(frames)
    write_equal(file, files, _decode, (SIDE, SIDE, 3), "decoding core50")
    return {"counts": counts}


def _is_frame(name: str) -> bool:
    return name.count("/") == 2 and name.lower().endswith(".png")


def _decode(image: Image.Image) -> Picture:
    require_size(image, FULL, FULL)
    return np.asarray(as_bytes(image, "RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))
