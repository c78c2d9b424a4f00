"""The cases: small computations over everything that a user can ask for, by name.

Most are trained for an epoch or two, so that rounding has little time to grow where another machine computes them.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from kenyon.streams import Classes, Crop, Domains, Group, ResizedCrop, Source, Times, from_arrays
from kenyon.tools import AF1, AF2, AFS, Collaborative, Protection
from torch import Tensor, nn

import kenyon
from tests.golden.modules import MODULES, convolutions, recurrent, residual, transformer
from tests.golden.values import Bits, Exact, Percent, Values
from tests.golden.workbench import Bench, clouds, command, last_json, noise, numbers_of, pictures, saved, tensors
from tests.replicas import write_cifar_10, write_cifar_100

Case = Callable[[Bench], Values]


@dataclass(frozen=True)
class Entry:
    run: Case
    quick: bool  # part of the test suite, not only of `python -m tests.golden.driver --check`
    cpu_only: bool = False


CASES: dict[str, Entry] = {}


def add(name: str, run: Case, *, quick: bool = False, cpu_only: bool = False) -> None:
    assert name not in CASES, name
    CASES[name] = Entry(run, quick, cpu_only)


# ------------------------------------------------------------------------------------ methods on the benchmark digits

METHODS = (
    "finetune", "random-init", "ewc", "mas", "si", "rwalk", "cpr-ewc", "cpr-mas", "agscl", "ewc-af1", "ewc-af2",
    "mas-af1", "mas-af2", "mcl-ewc", "mcl-mas", "caf-ewc", "caf-mas", "pnc", "icl-ewc", "icl-mas", "discrete", "er",
    "joint", "joint-af1", "joint-mcl", "joint-caf",
)  # fmt: skip
SHORT = {"epochs": 2, "seeds": 2, "fwt": False}


def trained(bench: Bench, benchmark: str, methods: str, **asked: Any) -> Values:
    """What `kenyon.run` leaves on disk, and that it says the same."""
    results = kenyon.run(benchmark, methods, out=bench.folder, device=bench.device, **(SHORT | asked))
    found = saved(bench.folder)
    for label, result in results.items():
        found[f"{label}: labels"] = Exact([result.benchmark, result.method, len(result.runs)])
        found[f"{label}: aac"] = Percent(list(result.aac.runs) if result.aac else [])
        found[f"{label}: accuracy"] = Percent(result.accuracy)
    return found


for name in METHODS:
    add(f"digits/{name}", partial(trained, benchmark="digits", methods=name), quick=True)

SGD = {"optimiser": "sgd", "rate": 0.05}
STEP = {"schedule": "step", "validation": 0, "drop_epoch": 1}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "forward transfer": ("finetune,ewc", {"fwt": True}),
    "strengths that differ": ("caf-ewc", {"lambda_sp": [1e3, 1e5], "lambda_af": [1e-6, 1e-3]}),
    "strengths, one at a time": ("caf-ewc", {"lambda_sp": [1e3, 1e5], "lambda_af": [1e-6, 1e-3], "fleet": 1}),
    "points that train apart": ("ewc", {"epochs": [1, 2], "fisher": ["published", "exact"]}),
    "seeds chosen": ("mcl-mas", {"seeds": [7, 3, 11]}),
    "fewer tasks": ("ewc", {"tasks": 2}),
    "weights of every task": ("ewc", {"keep": "every", "tasks": 3}),
    "deterministic": ("caf-ewc", {"deterministic": True}),
    "three learners": ("caf-mas", {"learners": 3}),
    "wider": ("finetune", {"width": 40}),
    "bfloat16": ("caf-ewc,ewc", {"precision": "bfloat16"}),
    "float32": ("caf-ewc", {"precision": "float32"}),
    "first heads zero": ("ewc", {"first_heads": "zero"}),
    "diversity medium": ("mcl-ewc", {"diversity": "medium"}),
    "diversity low": ("caf-ewc", {"diversity": "low"}),
    "gate": ("caf-ewc,mcl-mas", {"gate": True}),
    "sgd": ("ewc,caf-mas", SGD),
    "sgd without momentum": ("mas", SGD | {"momentum": 0.0}),
    "sgd bounded": ("ewc,rwalk,icl-mas", SGD | {"bounded": True, "lambda_sp": 1e7}),
    "sgd carried on": ("ewc", SGD | STEP | {"carry": True}),
    "step": ("ewc,ewc-af2,pnc", STEP | {"drop": 10.0}),
    "patience": ("caf-ewc", {"epochs": 6, "patience": 1, "tasks": 3}),
    "batch": ("ewc", {"batch": 7, "rate": 3e-3}),
    "penalties from the first task": ("mas-af1,ewc", {"penalties_from": 1}),
    "fisher exact": ("ewc,pnc", {"fisher": "exact"}),
    "fisher of large images": ("ewc", {"fisher": "large"}),
    "fisher of core50": ("ewc", {"fisher": "core50"}),
    "omega of large images": ("mas", {"omega": "large"}),
    "omega of core50": ("mas", {"omega": "core50"}),
    "accumulate average": ("mas,ewc", {"accumulate": "average"}),
    "accumulate sum": ("ewc,icl-ewc", {"accumulate": "sum"}),
    "accumulate last": ("caf-ewc", {"accumulate": "last"}),
    "rwalk of its paper": ("rwalk", {"rwalk_form": "paper"}),
    "af1 by learner": ("caf-ewc", {"af1": "learner", "lambda_af": 1e-3}),
    "af1 uniform": ("caf-mas", {"af1": "uniform", "lambda_af": 1e-3}),
    "af1 on open heads": ("ewc-af1,caf-ewc", {"af1_heads": "open", "lambda_af": 1e-3}),
    "af1 on no heads": ("mas-af1", {"af1_heads": "none", "lambda_af": 1e-3}),
    "af1 from the first task": ("mas-af1", {"from_first": True, "lambda_af": 1e-3}),
    "af2 validated": ("ewc-af2", {"af2_validated": True}),
    "af2 not validated": ("mas-af2", {"af2_validated": False}),
    "af2 that learns": ("ewc-af2", {"af2_first": "learned"}),
    "af2 that waits": ("mas-af2", {"af2_first": "waits"}),
    "afs uniform": ("caf-ewc", {"afs": "uniform", "gamma": 0.2}),
    "afs of the paper": ("caf-ewc,joint-caf", {"afs_form": "paper", "gamma": 0.2}),
    "joint, af1": ("joint-af1", {"lambda_af": 1e-2}),
    "pnc online": ("pnc", {"decay": 0.9}),
    "pnc that goes on": ("pnc", {"reinit": False, "temperature": 4.0}),
    "replay mixed": ("er", {"replay": "mixed", "memory": 5, "replay_batch": 16}),
    "agscl": ("agscl", {"mu": 1e-2, "rho": 0.6, "eta": 0.5, "lambda_sp": 50.0}),
}  # fmt: skip
LONGER = {"strengths, one at a time", "points that train apart", "step", "patience", "sgd bounded", "af2 validated"}
for name, (methods, asked) in SETTINGS.items():
    case = partial(trained, benchmark="digits", methods=methods, **asked)
    add(f"digits, set/{name}", case, quick=name not in LONGER)

for name in ("finetune", "ewc", "mas-af2", "agscl", "pnc", "er", "caf-ewc", "icl-mas"):
    short = {"tasks": 2, "epochs": 1}
    add(f"digits-conv/{name}", partial(trained, benchmark="digits-conv", methods=name, **short), quick=name == "ewc")


# --------------------------------------------------------------------- networks and regimes of the image benchmarks


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
    from kenyon.streams import SOURCES
    from kenyon.train import Training

    from kenyon.experiments import BENCHMARKS, benchmark

    def load(data: object) -> Source:
        return source

    load.__name__, load.__doc__ = name.replace("-", "_"), "Made up."
    training = Training(**({"epochs": 1, "batch": 16, "validation": 0.2} | regime.pop("training", {})))
    benchmark(backbone=backbone, training=training, **({"width": 4} | regime))(load)
    try:
        yield name
    finally:
        for registry in (BENCHMARKS, SOURCES):
            registry.pop(name, None)  # type: ignore[attr-defined]


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


def parts(cut: Any) -> Source:
    x, y = clouds(0, 8, size=160, classes=2)
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
    from kenyon.nets import alexnet

    return alexnet(width, learners)


def small_omniglot(width: int, learners: int) -> nn.Module:
    from kenyon.nets import omniglot_cnn

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
STREAMS: dict[str, tuple[Callable[[], Source], Callable[[int, int], nn.Module], str]] = {
    "times": (partial(parts, Times(3)), dense, "caf-ewc,si"),
    "domains": (partial(parts, Domains([["north", "south", "east"][i // 2 % 3] for i in range(160)])), dense, "ewc"),
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
    from kenyon.streams import Groups, find_source, from_dataset, from_folder
    from PIL import Image

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


# ---------------------------------------------------------------------------------------------------------- estimator

ESTIMATED = (
    "finetune", "ewc", "mas", "si", "rwalk", "caf-ewc", "caf-mas", "er", "icl-ewc", "agscl", "pnc", "ewc-af1",
    "ewc-af2", "mas-af2", "cpr-ewc", "mcl-mas", "discrete",
)  # fmt: skip
QUICK = {
    "mlp": {"caf-ewc", "ewc-af2", "er", "icl-ewc", "si"},
    "cnn": {"caf-mas", "pnc", "agscl"},
    "resnet": {"ewc"},
    "transformer": {"ewc"},
    "lstm": {"caf-ewc"},
}
NOT_ON = {"resnet": {"er"}}  # refused: batch statistics do not go with replay
WIDE = {"mlp", "cnn"}  # backbones on which every method is recorded; on others some
SOME = ("finetune", "ewc", "mas", "si", "rwalk", "caf-ewc", "er", "icl-ewc", "ewc-af2", "cpr-ewc")


def answers(learner: Any, inputs: Any, tasks: list[str]) -> Values:
    found: Values = {
        "proba": learner.predict_proba(inputs),
        "matrix": Percent(learner.accuracy_matrix()),
        "inferred": Percent(learner.accuracy_matrix("inferred")),
        "forgetting": Percent(list(learner.forgetting().values())),
        "classes": Exact(learner.classes_.tolist()),
        "tasks": Exact(learner.tasks_),
        "predictions": Bits(learner.predict(inputs).tolist()),
    }
    for task in tasks:
        found[f"proba {task}"] = learner.predict_proba(inputs, task=task)
    return found


def estimated(bench: Bench, module: str, method: str, **settings: Any) -> Values:
    """Three tasks, through a file in between; weights and importances as they are in the file."""
    backbone, data = MODULES[module]
    given = {"epochs": 3, "batch": 16, "rate": 3e-3, "device": bench.device} | settings
    if method in ("caf-ewc", "caf-mas", "icl-ewc", "mcl-mas"):
        given = {"learners": 2} | given
    learner = kenyon.ContinualLearner(backbone() if backbone else None, method, **given)
    inputs: list[Any] = []
    path = bench.folder / "learner.safetensors"
    for task in range(3):
        x, y = data(task)
        learner.fit(x[:72], y[:72], task=f"t{task}", test=(x[72:], y[72:]))
        inputs.append(x[72:])
        if task == 1:
            learner.save(path)
            learner = kenyon.ContinualLearner.load(path, backbone() if backbone else None, device=bench.device)
    learner.save(path)
    some = np.concatenate(inputs)
    found = answers(learner, some, ["t0", "t1", "t2"]) | tensors(path, "file: ")
    if method != "discrete":
        found["task"] = Bits(learner.predict_task(some).tolist())
        reading = learner.readings(*data(0), task="t0")
        found["readings"] = Percent([100 * reading.named, 100 * reading.inferred, 100 * reading.task])
    return found


for module in MODULES:
    for name in ESTIMATED if module in WIDE else SOME:
        if name not in NOT_ON.get(module, ()):
            quick = name in QUICK[module]
            add(f"estimator, {module}/{name}", partial(estimated, module=module, method=name), quick=quick)

for name, settings in {
    "gate": {"method": "caf-ewc", "gate": True},
    "diversity low": {"method": "caf-mas", "diversity": "low"},
    "no validation": {"method": "ewc", "validation": 0.0},
    "as they are": {"method": "mas", "standardise": False},
    "exact": {"method": "ewc", "options": {"fisher": "exact", "accumulate": "sum"}, "lambda_sp": 100.0},
    "strengths": {"method": "caf-ewc", "lambda_sp": 10.0, "lambda_af": 1e-3, "gamma": 0.5, "seed": 5},
    "bfloat16": {"method": "ewc", "precision": "bfloat16"},
    "given": {"method": "ewc", "start": "given"},
}.items():
    module = "cnn" if name == "given" else "mlp"
    add(f"estimator, set/{name}", partial(estimated, module=module, **settings), quick=name == "strengths")


def shared_head(bench: Bench) -> Values:
    """Tasks that arrive with `partial_fit` and share their classes, which are words."""
    learner = kenyon.ContinualLearner(None, "caf-ewc", heads="shared", epochs=2, device=bench.device)
    names = np.array(["no", "yes"])
    for task in range(3):
        x, y = clouds(0, 6, size=60)
        learner.partial_fit(x + np.float32(0.3 * task), names[y], classes=["no", "yes"])
    return {
        "proba": learner.predict_proba(x),
        "score": Percent([100 * learner.score(x, names[y])]),
        "tasks": Exact([learner.tasks_, learner.classes_.tolist()]),
    }


def unequal_tasks(bench: Bench) -> Values:
    """Tasks of different sizes, one of bytes: the first network and standardization stay."""
    learner = kenyon.ContinualLearner(convolutions(4, 1), "mas-af2", epochs=2, device=bench.device)
    for task, classes in enumerate((2, 4, 3)):
        x, y = pictures(task, 3, 8, 8, classes=classes)
        learner.fit(x, y + 10 * task, task=str(task), test=(x, y + 10 * task))
    return answers(learner, x, ["0", "1", "2"])


def exported(bench: Bench) -> Values:
    """As a program of PyTorch, which answers without Kenyon."""
    learner = kenyon.ContinualLearner(None, "caf-ewc", learners=2, epochs=1, device="cpu")
    for task in range(2):
        learner.fit(*clouds(task, 6), task=str(task))
    path, x = bench.folder / "learner.pt2", clouds(0, 6)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learner.export(path, examples=x)
        program = torch.export.load(path).module()
        return {"program": np.asarray(program(torch.from_numpy(x)).detach().float())}


add("estimator, more/shared head", shared_head, quick=True)
add("estimator, more/unequal tasks", unequal_tasks, quick=True)
add("estimator, more/exported", exported, cpu_only=True)


# ------------------------------------------------------------------------------------ losses for a loop of one's own


def own_loop(bench: Bench, importance: str, *, learners: int = 1, forget: str = "", **settings: Any) -> Values:
    """Three tasks in plain PyTorch; losses of every step, weights and importances in the end."""
    torch.manual_seed(0)
    bodies = [nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 8), nn.ReLU()) for _ in range(learners)]
    model = Collaborative(bodies, [nn.Linear(8, 2) for _ in range(3)]).to(bench.device)
    protection = Protection(model, importance, strength=3.0, exclude="heads", **settings)
    adaptive = {"adaptive": settings.get("accumulate") is None}
    af1 = AF1(model, strength=1e-2, exclude="heads", **adaptive).to(bench.device) if "af1" in forget else None
    afs = AFS(learners, strength=0.3, **adaptive).to(bench.device) if "afs" in forget else None
    losses: list[Tensor] = []
    for task in range(3):
        batches = loader(task, bench.device)
        learned = [*model.parameters()]
        for one in (af1, afs):
            if one is not None:
                one.begin_task()
                learned += [*one.parameters()]
        optimizer = torch.optim.Adam(learned, 1e-2)
        protection.track(optimizer)
        for x, y in batches * 3:
            logits, own = model(x, task, own=True)
            loss = F.cross_entropy(logits, y) + protection()
            if afs is not None:
                loss = loss + afs(own)
            if af1 is not None and task:
                loss = loss + af1(model.heads[task])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())

        def predict(model: nn.Module, batch: tuple[Tensor, Tensor], task: int = task) -> tuple[Tensor, Tensor]:
            return model(batch[0], task), batch[1]

        protection.consolidate(batches, predict)
    state = protection.state_dict()
    found: Values = {"losses": torch.stack(losses), "tasks": Exact(state["tasks"])}
    found |= {f"importance {name}": value for name, value in state["importance"].items()}
    found |= {f"weight {name}": value for name, value in model.state_dict().items()}
    for name, one in (("af1", af1), ("afs", afs)):
        if one is not None:
            found |= {f"{name} {key}": value for key, value in one.named_parameters()}
    return found


def loader(task: int, device: str) -> list[tuple[Tensor, Tensor]]:
    x, y = (torch.from_numpy(part).to(device) for part in clouds(task, 6))
    return list(zip(x.split(16), (y - 2 * task).split(16), strict=True))


def expanded_loop(bench: Bench) -> Values:
    """AF-2, with a network that learns each task alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).to(bench.device)
    protection = Protection(model, "ewc", strength=3.0, exclude="2")
    forgetting = AF2(model, strength=1.0, exclude="2")
    losses: list[Tensor] = []
    for task in range(2):
        batches = loader(task, bench.device)
        optimizers = [torch.optim.Adam(one.parameters(), 1e-2) for one in (model, forgetting.network)]
        for _ in range(2):
            for x, y in batches:
                optimizers[1].zero_grad()
                F.cross_entropy(forgetting.network(x), y).backward()
                optimizers[1].step()
            forgetting.measure(batches)
            for x, y in batches:
                loss = F.cross_entropy(model(x), y) + protection() + (forgetting() if task else 0.0)
                optimizers[0].zero_grad()
                loss.backward()
                optimizers[0].step()
                losses.append(loss.detach())
        protection.consolidate(batches)
    found: Values = {"losses": torch.stack(losses)}
    found |= {f"weight {name}": value for name, value in model.state_dict().items()}
    return found | {f"importance {name}": value for name, value in protection.state_dict()["importance"].items()}


for name, asked in {
    "ewc": {"importance": "ewc"},
    "ewc exact": {"importance": "ewc-exact"},
    "mas": {"importance": "mas"},
    "si": {"importance": "si"},
    "ewc, averaged": {"importance": "ewc-exact", "accumulate": "average"},
    "mas, decaying": {"importance": "mas", "accumulate": 0.5},
    "caf": {"importance": "ewc", "learners": 3, "forget": "af1 afs"},
    "caf uniform": {"importance": "mas", "learners": 3, "forget": "af1 afs", "accumulate": "last"},
}.items():
    add(f"own loop/{name}", partial(own_loop, **asked), quick=True)  # type: ignore[arg-type]
add("own loop/af2", expanded_loop, quick=True)


# -------------------------------------------------------------------------------------------------------------- games

GAMES = {"copies": 4, "horizon": 16, "minibatches": 4, "epochs": 2, "evaluations": 2, "episodes": 2}
GAMES |= {"importance_rollouts": 2, "importance_steps": 4, "longest": 60}


def games(bench: Bench, methods: str, steps: int = 256, seeds: str = "2", **settings: Any) -> Values:
    pairs = [word for name, value in (GAMES | settings).items() for word in ("--set", f"{name}={value}")]
    asked = ["--games", "catch,dodge", "--steps", steps, "--seeds", seeds, "--out", bench.folder, *pairs]
    said = last_json(command("run", "rl-mini", "--method", methods, "--device", bench.device, *asked, "--json"))
    found = saved(bench.folder)
    for name, told in said["methods"].items():
        for measure in ("nar", "np", "ns"):
            found[f"{name}: {measure}"] = told[measure]["runs"] if told[measure] else []
    return found


for name in ("ewc", "mas", "ewc-af1", "cpr-mas", "mcl-ewc", "caf-ewc", "caf-mas"):
    add(f"rl-mini/{name}", partial(games, methods=f"finetune,{name}"), quick=name == "caf-ewc")
for name in ("si", "rwalk"):  # for which nothing is published on games
    add(f"rl-mini/{name}", partial(games, methods=name, lambda_sp=10))
add("rl-mini, set/a grid", partial(games, methods="ewc", lambda_sp="10,1000"))
add("rl-mini, set/drawn actions", partial(games, methods="finetune", acting="drawn"))
add("rl-mini, set/anchors of each", partial(games, methods="ewc", anchors="each"))
add("rl-mini, set/anchors of the last", partial(games, methods="mas", anchors="last", penalties_from=1))
add("rl-mini, set/three learners", partial(games, methods="caf-ewc", learners=3, gate="true", gamma=1))


def played(bench: Bench) -> Values:
    """A saved policy acts."""
    from kenyon.rl.policy import policy_of

    from kenyon.rl import find_suite

    games(bench, "ewc", seeds="1")
    policy = policy_of(bench.folder / "rl-mini" / "ewc", seed=0, game="dodge")
    shape = find_suite("rl-mini").shape
    seen = (127 + 127 * noise(20, *shape)).astype(np.uint8)
    return {"probabilities": policy.probabilities(seen), "actions": Bits(policy.act(seen).tolist())}


add("rl-mini, set/policy", played)


# --------------------------------------------------------------------------- search, sweeps, analyses, interruptions


def searched(bench: Bench) -> Values:
    values = {"lambda_sp": [1e4, 1e6], "gamma": [0.02, 0.2], "lambda_af": 1e-6}
    given = {"protocol": "short", "folds": 2, "tasks": 2, "epochs": 1, "out": bench.folder, "device": bench.device}
    kenyon.search("digits", "caf-ewc", **given, **values)
    (best,) = bench.folder.rglob("best.toml")
    lines = [line for line in best.read_text().splitlines() if line and not line.startswith("#")]
    kept = lines[: lines.index("[origin]")] if "[origin]" in lines else lines
    return saved(bench.folder) | {"best": Exact(kept)}


def swept(bench: Bench) -> Values:
    """Two benchmarks from a file, by workers of this process."""
    asked = bench.folder / "many.toml"
    asked.write_text(
        'benchmark = ["digits", "digits-conv"]\nmethod = ["finetune", "ewc"]\nseeds = [0, 4]\n'
        "[settings]\nepochs = 1\nlambda_sp = [100.0, 1e6]\n"
    )
    out = bench.folder / "out"
    command("sweep", asked, "--tasks", 2, "--out", out, "--device", bench.device, "--no-fwt", "--fleet", 3)
    return saved(out)


def analysed(bench: Bench, methods: str, what: str) -> Values:
    """Analyses by name, of one learner and of several, by the command line."""
    given = {"out": bench.folder, "device": bench.device, "epochs": 1, "seeds": 2, "tasks": 2, "fwt": False}
    kenyon.run("digits-conv", methods, **given)
    some = ["--set", "flatness.directions=2", "--set", "flatness.steps=3", "--set", "flatness.samples=32"]
    command("analyse", bench.folder, "--what", what, "--device", bench.device, *some)
    found: Values = {}
    for path in sorted(bench.folder.rglob("analysis/*.json")):
        place = path.relative_to(bench.folder).as_posix()
        for name, value in numbers_of(json.loads(path.read_text())).items():
            found[f"{place}: {name}"] = Percent(value) if "accuracy" in name else value
    return found


class StopAfter:
    """Progress of `kenyon.run` that interrupts the training after so many epochs, like Ctrl-C in a notebook."""

    def __init__(self, epochs: int) -> None:
        self.left = epochs

    def fleet_starts(self, cells: Any, done: int, total: int) -> None: ...

    def epoch_done(self, trainer: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def fleet_ends(self, seconds: float) -> None: ...

    def fleet_split(self, cells: Any, most: int) -> None: ...


def interrupted(bench: Bench, method: str) -> Values:
    """Stopped twice and resumed; a grid whose second point comes later."""
    for epochs in (2, 3):
        try:
            trained(bench, "digits", method, epochs=3, tasks=3, progress=StopAfter(epochs))
        except KeyboardInterrupt:
            continue
        raise RuntimeError("It was not interrupted.")
    states = sum(1 for _ in bench.folder.rglob("state-*"))
    return {"states": Exact(states > 0)} | trained(bench, "digits", method, epochs=3, tasks=3)


def added(bench: Bench) -> Values:
    """Seeds and points that are trained later than others."""
    kenyon.run("digits", "ewc", out=bench.folder, device=bench.device, tasks=2, epochs=1, fwt=False, seeds=[1])
    return trained(bench, "digits", "ewc", tasks=2, epochs=1, seeds=3)


def own_method(bench: Bench) -> Values:
    """The example of a method of one's own, as the command line takes it."""
    example = Path(__file__).parents[2] / "examples" / "own_method.py"
    command(
        "run", "digits", "--method", example, "--set", "epochs=1", "--seeds", 2, "--no-fwt",
        "--device", bench.device, "--out", bench.folder,
    )  # fmt: skip
    return saved(bench.folder)


def own_benchmark(bench: Bench) -> Values:
    """The example of a stream of domains, from its file."""
    example = Path(__file__).parents[2] / "examples" / "own_domains.py"
    asked = ["--method", "finetune,caf-ewc", "--epochs", 1, "--seeds", 1, "--no-fwt"]
    command("run", example, *asked, "--device", bench.device, "--out", bench.folder)
    return saved(bench.folder)


def configured(bench: Bench) -> Values:
    """A configuration file; what is said beside it wins."""
    file = bench.folder / "asked.toml"
    file.write_text('benchmark = "digits"\nmethod = "caf-ewc"\nseeds = [2]\n[settings]\nepochs = 9\ngamma = 0.2\n')
    kenyon.run(config=file, epochs=1, tasks=2, out=bench.folder / "out", device=bench.device, fwt=False)
    return saved(bench.folder / "out")


def shown_numbers(bench: Bench) -> Values:
    """What `kenyon show --json` says."""
    kenyon.run("digits", "finetune,caf-ewc", 2, out=bench.folder, device=bench.device, tasks=2, epochs=1)
    body = numbers_of(last_json(command("show", bench.folder, "--json")))
    return {name: Percent(value) for name, value in body.items()}


add("search/short", searched, quick=True)
add("sweep/one worker", swept)
add("analyses/all", partial(analysed, methods="ewc,caf-ewc", what="all"))
add("analyses/some", partial(analysed, methods="caf-ewc", what="discrepancy,flatness"), quick=True)
for name in ("caf-ewc", "ewc-af2", "pnc", "er", "si"):
    add(f"interrupted/{name}", partial(interrupted, method=name), quick=name in ("caf-ewc", "pnc"))
add("interrupted/added later", added)
add("own files/method", own_method)
add("own files/benchmark", own_benchmark)
add("own files/configuration", configured)
add("own files/show", shown_numbers)


# ------------------------------------------------------------------------------------------------ theory and measures


def theory(bench: Bench) -> Values:
    from kenyon import theory as t

    prior, old = t.Gaussian(0, 1), t.Gaussian(4, 1)
    wide, narrow = t.Gaussian([0.0, 1.0, -1.0], [1.0, 2.0, 4.0]), t.Gaussian([2.0, 0.5, -3.0], [0.5, 0.25, 1.0])
    task, tasks = t.Evidence(optimum=1, fisher=1), t.Evidence([1.0, -1.0, 0.0], [3.0, 1.0, 0.5])
    rates = [0, 0.1, 0.25, 0.9, 1]
    hat = t.forget(narrow, wide, rates)
    best, several = t.best_rate(old, prior, task), t.best_rate(narrow, wide, tasks)
    space = t.Space.shared(dimension=50, learners=5)
    sizes = [2250] * 19
    c1, c2 = t.cover_c1(sizes, space, delta=0.05), t.cover_c2(2250, space, delta=0.05)
    bound = t.plasticity_bound(t.quadratic_flatness(curvature=1, radius=0.3), [0.1] * 19, c1)
    return {
        "forget": hat.m,
        "forget, z": hat.log_z,
        "target": t.target(narrow, wide, tasks, 0.25).mode,
        "predictive": [t.log_predictive(old, prior, task, b) for b in (0.0, 0.3, 0.75)],
        "slope": [t.log_predictive_slope(old, prior, task, b) for b in (0.1, 0.75)],
        "best": [best.beta, best.excess, several.beta],
        "af1": t.minimiser(old, task, t.lambdas_af1(0.25), t.expanded_af1(prior)),
        "af2": t.minimiser(old, task, t.lambdas_af2(0.25), t.expanded_af2(prior, task)),
        "back": np.concatenate([np.ravel(part) for part in t.forgetting_af1(lambda_sp=6, lambda_af=2)]),
        "covers": [c1.total, c2.total, t.single_cover(2250 * 19, 50, delta=0.05)],
        "bound": list(bound.terms.values()),
        "norms": [t.r1(5, 50, sizes, 0.05), t.r2(5, 50, 2250, 0.05)],
        "remembered": t.fisher_remembered([[1.0, 2.0], [0.5, 3.0], [4.0, 0.1]], 0.3),
    }  # fmt: skip


def measures(bench: Bench) -> Values:
    from kenyon import metrics as m

    matrix = 50 + 50 * noise(5, 5).astype(np.float64)
    p = torch.softmax(torch.from_numpy(noise(3, 20, 4)), -1)
    summary = m.Summary.of([1.0, 2.5, float("nan"), 3.25])
    assert summary is not None
    return {
        "transfer": [
            m.average_accuracy(matrix),
            m.forward_transfer(matrix, matrix[0]),
            m.backward_transfer(matrix),
            m.learning_accuracy(matrix),
        ],
        "curve": m.average_curve(matrix),
        "expertise": m.expertise(matrix),
        "diversity": torch.stack(m.prediction_diversity(p)),
        "summary": [summary.mean, summary.sem, summary.count],
        "text": Exact(summary.text()),
    }


def figure(bench: Bench) -> Values:
    """Fig. 3b of the paper, which needs no runs."""
    command("reproduce", "fig3b", "--out", bench.folder)
    found = {path.name: numbers_of(json.loads(path.read_text())) for path in sorted(bench.folder.rglob("*.json"))}
    return {f"{file}: {name}": value for file, body in found.items() for name, value in body.items()}


add("numbers/theory", theory, quick=True, cpu_only=True)
add("numbers/metrics", measures, quick=True, cpu_only=True)
add("numbers/fig3b", figure, cpu_only=True)

__all__ = ["CASES", "Case", "Entry"]
