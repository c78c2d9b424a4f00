"""Compare EWC by Avalanche with EWC by Kenyon: same network, images, splits, batches and epochs; accuracy and time.

    pip install -e '.[avalanche]'     # or avalanche-lib alone, see below
    python benchmarks/avalanche_ewc.py --data FOLDER --tasks 5 --epochs 10 --seeds 3

Tasks are those of R-CIFAR-100. Both train the six-convolution network with one head per task by Adam (1e-3, batches
of 256) on the same 90 % of each task's images. Differences that cannot be removed from outside:

- Fisher information. Avalanche squares the gradient of a training batch, without dropout, and sums over tasks (mode
  online, decay 1). Kenyon's published variant squares that of a batch of 20, with dropout; here it sums over tasks
  too. Where samples are independent a batch of B gives 1/B of a sample's square, and Avalanche's penalty has no
  factor 1/2: so its lambda here is lambda_SP * 256 / (2 * 20).
- Kenyon also validates every epoch, drops the learning rate and keeps the best weights. Its times include that.
- Avalanche trains one run after another; Kenyon all seeds at once.

Avalanche imports torchvision and loggers, which this comparison does not use. If they are absent or do not load
(torchvision with a CPU-only PyTorch), empty stand-ins replace them.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import json
import platform
import sys
import time
import types
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from kenyon.benchmarks.registry import find_benchmark
from kenyon.data import Stream
from kenyon.experiments.config import configure
from kenyon.experiments.grid import GridPoint, RunSpec
from kenyon.experiments.training import build_trainer
from kenyon.metrics import Summary
from kenyon.training import choose_device

NEEDLESS = ("torchvision", "wandb", "tensorboard", "torch.utils.tensorboard", "pytorchcv", "gdown", "qpsolvers")


class StandIn(types.ModuleType):
    """A module in which every name is a class that accepts everything and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        anything = {"__init__": lambda self, *a, **k: None, "__call__": lambda self, *a, **k: None}
        made = type(name, (), anything)
        setattr(self, name, made)
        return made


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if any(name == known or name.startswith(known + ".") for known in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


def import_avalanche() -> Any:
    absent = []
    for name in NEEDLESS:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                __import__(name)
        except Exception:  # whatever keeps it from loading
            absent.append(name)
            for loaded in [m for m in sys.modules if m == name or m.startswith(name + ".")]:
                del sys.modules[loaded]
    sys.meta_path.insert(0, StandIns(absent))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import avalanche
            import avalanche.benchmarks
            import avalanche.evaluation
            import avalanche.models
            import avalanche.training
    except ImportError as error:
        raise SystemExit(f"Avalanche is not here ({error}). Install it with: pip install avalanche-lib") from None
    return avalanche


def images_and_labels(stream: Stream, part: str, task: int) -> tuple[Tensor, Tensor]:
    split = getattr(stream.tasks[task], part)
    mean, std = (torch.tensor(x).view(1, -1, 1, 1) for x in (stream.mean, stream.std))
    return (split.pool[split.index].float() / 255 - mean) / std, split.labels


def train_avalanche(stream: Stream, backbone: nn.Module, epochs: int, strength: float, device: torch.device) -> Any:
    """Return the accuracy of all tasks in the end in per cent, and seconds."""
    avalanche = import_avalanche()
    from avalanche.benchmarks import benchmark_from_datasets, task_incremental_benchmark, with_classes_timeline
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.models import MultiHeadClassifier, MultiTaskModule
    from avalanche.training.plugins import EvaluationPlugin
    from avalanche.training.supervised import EWC

    class Network(MultiTaskModule):
        def __init__(self, features: nn.Module, classes: int) -> None:
            super().__init__()
            self.features, self.heads = features, MultiHeadClassifier(256, classes, masking=False)

        def forward(self, x: Tensor, task_labels: Tensor) -> Tensor:
            return self.heads(self.features(x), task_labels)

    tasks = range(len(stream.tasks))
    parts = {}
    for part in ("train", "test"):
        made = []
        for task in tasks:
            x, y = images_and_labels(stream, part, task)
            tensors = TensorDataset(x, y)
            tensors.targets = y.tolist()  # type: ignore[attr-defined]
            made.append(as_classification_dataset(tensors))
        parts[part] = made
    benchmark = with_classes_timeline(task_incremental_benchmark(benchmark_from_datasets(**parts)))
    model = Network(backbone, stream.class_counts[0])
    strategy = EWC(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
        criterion=nn.CrossEntropyLoss(),
        ewc_lambda=strength,
        mode="online",
        decay_factor=1.0,
        train_mb_size=256,
        eval_mb_size=1024,
        train_epochs=epochs,
        device=device,
        evaluator=EvaluationPlugin(loggers=None),
    )
    started = time.perf_counter()
    for experience in benchmark.train_stream:
        strategy.train(experience)
    seconds = time.perf_counter() - started
    right = []
    model.eval()
    with torch.no_grad():
        for task in tasks:
            x, y = images_and_labels(stream, "test", task)
            label = torch.full((len(x),), task, device=device)
            found = [model(some.to(device), label[: len(some)]).argmax(1).cpu() for some in x.split(500)]
            right.append(100 * (torch.cat(found) == y).float().mean().item())
    return sum(right) / len(right), seconds, avalanche.__version__


def train_kenyon(config: Any, source: Any, seeds: Sequence[int], device: torch.device) -> tuple[list[float], float]:
    trainer = build_trainer([RunSpec(GridPoint(config), seed) for seed in seeds], source, device)
    started = time.perf_counter()
    trainer.run()
    seconds = time.perf_counter() - started
    last = trainer.position.records[-1]["accuracy"]
    return [sum(row) / len(row) for row in last], seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="EWC by Avalanche beside EWC by Kenyon.")
    parser.add_argument("--data", type=Path, help="folder with cifar-100-python")
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lambda-sp", type=float, default=10000.0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("avalanche.json"))
    options = parser.parse_args()

    device, bench = choose_device(options.device), find_benchmark("r-cifar-100")
    settings = {"epochs": options.epochs, "lambda_sp": options.lambda_sp, "accumulate": "sum"}
    config = configure("r-cifar-100", "ewc", tasks=options.tasks, overrides=settings)
    source = bench.source.load(options.data)
    seeds = range(options.seeds)
    theirs, their_seconds, version = [], 0.0, ""
    for seed in seeds:
        torch.manual_seed(seed)
        stream = source.stream(seed, tasks=options.tasks)
        strength = options.lambda_sp * 256 / (2 * 20)
        aac, seconds, version = train_avalanche(stream, bench.backbone(32, 1), options.epochs, strength, device)
        theirs.append(aac)
        their_seconds += seconds
        print(f"Avalanche, seed {seed}: {aac:.2f} % in {seconds:.1f} s", flush=True)
    alone = train_kenyon(config, source, [0], device)[1]
    print(f"Kenyon, seed 0 alone: {alone:.1f} s", flush=True)
    ours, our_seconds = train_kenyon(config, source, list(seeds), device)
    print(f"Kenyon, {len(seeds)} seeds at once: {our_seconds:.1f} s", flush=True)

    def summary(values: list[float]) -> dict[str, Any]:
        found = Summary.of(values)
        assert found is not None
        return {"mean": found.mean, "sem": None if found.sem != found.sem else found.sem, "runs": values}

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    result = {
        "command": "avalanche_ewc.py " + " ".join(sys.argv[1:]).replace(str(options.data), "FOLDER"),
        "tasks": options.tasks,
        "epochs": options.epochs,
        "seeds": options.seeds,
        "lambda_sp": options.lambda_sp,
        "device": name,
        "versions": {"avalanche": version, "torch": torch.__version__, "python": platform.python_version()},
        "avalanche": {"accuracy": summary(theirs), "seconds": their_seconds},
        "kenyon": {"accuracy": summary(ours), "seconds": our_seconds, "seconds_one_seed": alone},
        "times_faster": their_seconds / our_seconds,
        "times_faster_one_seed": their_seconds / options.seeds / alone,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(
        json.dumps({k: result[k] for k in ("avalanche", "kenyon", "times_faster", "times_faster_one_seed")}, indent=1)
    )


if __name__ == "__main__":
    main()
