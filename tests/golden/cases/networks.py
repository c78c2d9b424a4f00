"""Networks and regimes of the image benchmarks, and streams of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import kenyon
from kenyon.data import Classes, Crop, Domains, Group, Groups, ResizedCrop, Source, Times, from_arrays
from tests.golden.cases.methods import trained
from tests.golden.cases.registry import add
from tests.golden.modules import convolutions, recurrent, residual, signals, transformer
from tests.golden.values import Exact, Values
from tests.golden.workbench import Bench, clouds, noise, pictures
from tests.replicas import write_cifar_10, write_cifar_100


def cifar(bench: Bench, benchmark: str, method: str, **asked: Any) -> Values:
    """On files in the public layout with a few images a class."""
    write_cifar_100(bench.folder / "data", per_class_train=10)
    write_cifar_10(bench.folder / "data", per_class_train=20)
    given = {"data": bench.folder / "data", "tasks": 2, "epochs": 1, "width": 5, "seeds": 1, "batch": 32} | asked
    return trained(replace(bench, folder=bench.folder / "out"), benchmark, method, **given)


for name in ("finetune", "caf-ewc", "ewc-af2", "mas", "agscl"):
    add(f"r-cifar-100/{name}", partial(cifar, benchmark="r-cifar-100", method=name), quick=name == "caf-ewc")
add("s-cifar-100/ewc", partial(cifar, benchmark="s-cifar-100", method="ewc", seeds=2))
add("r-cifar-10-100/caf-mas", partial(cifar, benchmark="r-cifar-10-100", method="caf-mas", tasks=3, width=3))


@contextmanager
def own(name: str, source: Source, backbone: Callable[[int, int], nn.Module], **regime: Any) -> Iterator[str]:
    """A benchmark as a user's file makes one."""
    from kenyon.data import SOURCES
    from kenyon.experiments import BENCHMARKS, benchmark
    from kenyon.training import Training

    def load(data: object) -> Source:
        return source

    load.__name__, load.__doc__ = name.replace("-", "_"), "Made up."
    training = Training(**({"epochs": 1, "batch": 16, "validation": 0.2} | regime.pop("training", {})))
    benchmark(backbone=backbone, training=training, **({"width": 4} | regime))(load)
    try:
        yield name
    finally:
        for registry in (BENCHMARKS, SOURCES):
            registry.pop(name, None)


def on_own(
    bench: Bench,
    source: Callable[[], Source],
    backbone: Callable[[int, int], nn.Module],
    method: str,
    asked: dict[str, Any] | None = None,
    **regime: Any,
) -> Values:
    with own("golden", source(), backbone, **regime) as name:
        return trained(bench, name, method, epochs=1, **(asked or {}))


def pool_of(shape: tuple[int, ...], classes: int, size: int, kind: str = "floats") -> tuple[Any, Any]:
    made = pictures if kind == "bytes" else clouds
    return made(0, *shape, size=size, classes=classes)


def classes_of(shape: tuple[int, ...], *, kind: str = "floats", classes: int = 4, size: int = 80) -> Source:
    x, y = pool_of(shape, classes, size, kind)
    return from_arrays(x, y, Classes(2), name="golden")


def parts(cut: Any, classes: int = 2) -> Source:
    x, y = clouds(0, 8, size=160, classes=classes)
    return from_arrays(x, y, cut, name="golden")


def shown(augmentation: Any) -> Source:
    x, y = pictures(0, 3, 16, 16, size=80, classes=4)
    groups = (Group("one", (0, 1)), Group("two", (2, 3)))
    test = torch.arange(80) % 5 == 0
    return Source(
        "golden", torch.from_numpy(x), torch.from_numpy(y), test, tuple("abcd"), groups, (0.5,) * 3, (0.3,) * 3,
        augmentation=augmentation,
    )  # fmt: skip


def words() -> Source:
    """Sequences of tokens."""
    y = np.arange(96) % 4
    tokens = (np.abs(noise(96, 7)) * 6).astype(np.int64) + 3 * y[:, None]
    return from_arrays(tokens, y, Classes(2), name="golden")


def dense(width: int, learners: int) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 16), nn.ReLU())


def small_alexnet(width: int, learners: int) -> nn.Module:
    from kenyon.models import alexnet

    return alexnet(width, learners)


def small_omniglot(width: int, learners: int) -> nn.Module:
    from kenyon.models import omniglot_cnn

    return omniglot_cnn(width, learners)


IMAGE_STRENGTHS = {"ewc": {"lambda_sp": 1e4}, "caf-mas": {"lambda_sp": 3, "lambda_af": 1e-4, "gamma": 0.1}}
LARGE_IMAGES = {"optimiser": "sgd", "rate": 0.005, "schedule": "step", "validation": 0.0, "carry": True}
for name in ("ewc", "caf-mas"):
    image = partial(classes_of, (1, 28, 28), kind="bytes", size=48)
    case = partial(on_own, source=image, backbone=small_omniglot, method=name, hyperparameters=IMAGE_STRENGTHS)
    add(f"network of omniglot/{name}", case)
    image = partial(classes_of, (3, 64, 64), kind="bytes", size=32)
    case = partial(on_own, source=image, backbone=small_alexnet, method=name, hyperparameters=IMAGE_STRENGTHS)
    asked = {"seeds": 1, "learners": 2} if name == "caf-mas" else {"seeds": 1}
    add(f"network of tiny-imagenet/{name}", partial(case, width=2, training=LARGE_IMAGES, asked=asked))

STRENGTHS = {
    "ewc": {"lambda_sp": 1e4},
    "mas-af2": {"lambda_sp": 3.0, "lambda_af": 1.0},
    "caf-ewc": {"lambda_sp": 1e4, "lambda_af": 1e-4, "gamma": 0.1},
    "si": {"lambda_sp": 1.0},
}
UNEQUAL = Groups({"two": [0, 1], "three": [2, 3, 4], "one more": [5, 6]})
STREAMS: dict[str, tuple[Callable[[], Source], Callable[[int, int], nn.Module], str]] = {
    "times": (partial(parts, Times(3)), dense, "caf-ewc,si"),
    "domains": (partial(parts, Domains([["north", "south", "east"][i // 2 % 3] for i in range(160)])), dense, "ewc"),
    "unequal tasks": (partial(parts, UNEQUAL, classes=7), dense, "caf-ewc,ewc"),
    "signals": (partial(classes_of, (3, 24)), signals, "ewc,caf-ewc"),
    "crops": (partial(shown, Crop()), convolutions, "ewc"),
    "windows": (partial(shown, ResizedCrop(size=16)), convolutions, "mas-af2"),
    "tokens": (words, recurrent, "caf-ewc"),
    "batch statistics": (partial(classes_of, (3, 8, 8), kind="bytes"), residual, "caf-ewc"),
    "attention": (partial(classes_of, (4, 8)), transformer, "ewc,mas-af2"),
}
for name, (source, backbone, methods) in STREAMS.items():
    case = partial(on_own, source=source, backbone=backbone, method=methods, hyperparameters=STRENGTHS)
    add(f"own stream/{name}", case, quick=True)


def full_width(bench: Bench, method: str) -> Values:
    """The published network of CIFAR, as wide as published."""
    return cifar(bench, "r-cifar-100", method, width=32 if method == "ewc" else 9, tasks=2)


add("r-cifar-100, full width/ewc", partial(full_width, method="ewc"))
add("r-cifar-100, full width/caf-ewc", partial(full_width, method="caf-ewc"))


def first_weights(bench: Bench) -> Values:
    """Of every backbone there is."""
    from kenyon import nets

    builds: dict[str, tuple[nn.Module, tuple[int, ...], int]] = {
        "digits_mlp": (nets.digits_mlp(16), (1, 8, 8), 1),
        "digits_mlp of five": (nets.digits_mlp(3, 5), (1, 8, 8), 5),
        "digits_cnn": (nets.digits_cnn(8), (1, 8, 8), 1),
        "cifar_cnn": (nets.cifar_cnn(9, 5), (3, 32, 32), 5),
        "omniglot_cnn": (nets.omniglot_cnn(8), (1, 28, 28), 1),
        "alexnet": (nets.alexnet(2), (3, 64, 64), 1),
        "atari_cnn": (nets.atari_cnn(4), (4, 84, 84), 1),
        "small_games_mlp": (nets.small_games_mlp(16, pixels=36), (1, 6, 6), 1),
    }
    found: Values = {}
    for name, (module, shape, learners) in builds.items():
        net = kenyon.Net(module, shape, (2, 3), learners=learners)
        found[f"{name}: size"] = Exact([net.parameter_count, net.features])
        found[name] = net.initial([0, 7])
    return found


def streams(bench: Bench) -> Values:
    """Which samples make which task of which seed."""
    from PIL import Image

    from kenyon.data import find_source, from_dataset, from_folder

    x, y = clouds(0, 8, size=120, classes=6)
    place = ["north", "south"]
    for number, image in enumerate(pictures(0, 8, 8, 3, size=24, classes=2)[0]):
        path = bench.folder / "photos" / f"class {number % 4}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    sources = {
        "classes": from_arrays(x, y, Classes(2)),
        "classes in order": from_arrays(x, y, Classes(3), test=0.5, ordered=True),
        "groups": from_arrays(x, y, Groups({"even": [0, 2], "odd": [1, 3, 5]})),
        "times": from_arrays(x, y, Times([50, 90])),
        "domains": from_arrays(x, y, Domains([place[i // 12 % 2] for i in range(120)])),
        "folder": from_folder(bench.folder / "photos", Classes(2), side=8),
        "dataset": from_dataset(dataset, Classes(2)),
        "digits": find_source("digits").load(None),
    }
    found: Values = {}
    for name, source in sources.items():
        found[f"{name}: scale"] = [*source.mean, *source.std]
        for seed in (0, 3):
            stream = source.stream(seed, validation=0.2)
            found[f"{name} {seed}: tasks"] = Exact([[task.name, *task.classes] for task in stream.tasks])
            found[f"{name} {seed}: shape"] = Exact(
                [list(stream.input_shape), list(stream.class_counts), stream.heads]
            )
            splits = [(t.train, t.validation, t.test) for t in stream.tasks]
            samples = torch.cat([split.index for some in splits for split in some])
            labels = torch.cat([split.labels for some in splits for split in some])
            found[f"{name} {seed}: samples"] = Exact([len(samples), *checked(samples)])
            found[f"{name} {seed}: labels"] = Exact([len(labels), *checked(labels)])
    return found


def checked(numbers: Tensor) -> list[int]:
    """Sums of whole numbers that see their order."""
    place = torch.arange(1, len(numbers) + 1)
    return [int(numbers.sum()), int((numbers * place).sum() % 1_000_003)]


add("networks/first weights", first_weights, quick=True, cpu_only=True)
add("streams/samples of tasks", streams, quick=True, cpu_only=True)
