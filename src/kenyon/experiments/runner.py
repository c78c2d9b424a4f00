"""Run experiments: train what is missing, keep what is there, continue what was interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from kenyon.errors import ConfigError, unknown
from kenyon.experiments.benchmarks import find_benchmark
from kenyon.experiments.config import Config, configure, settings
from kenyon.experiments.harvest import origin_of, runs_of, weights_of
from kenyon.experiments.results import Result
from kenyon.experiments.store import MethodFolder
from kenyon.nets import Net
from kenyon.streams import Source
from kenyon.train import Trainer, choose_device
from kenyon.train.device import cpu_threads
from kenyon.train.state import load_state, save_state, write_atomically

REFERENCE = "random-init"  # what forward transfer is measured against
SAVE_EVERY = 30.0  # seconds between states while a task is being learned


class Progress(Protocol):
    """What a run tells while it works; the command line draws it."""

    def fleet_starts(self, config: Config, seeds: Sequence[int], done: int, total: int) -> None:
        """A fleet begins, with so many of its epochs behind it."""

    def epoch_done(self, trainer: Trainer) -> None: ...

    def fleet_ends(self, seconds: float) -> None: ...


class Silent:
    def fleet_starts(self, config: Config, seeds: Sequence[int], done: int, total: int) -> None: ...

    def epoch_done(self, trainer: Trainer) -> None: ...

    def fleet_ends(self, seconds: float) -> None: ...


@dataclass(frozen=True)
class Plan:
    """What a call asks for, checked before anything is trained."""

    configs: dict[str, Config]  # by method, in the order asked for
    reference: Config | None
    seeds: tuple[int, ...]
    device: torch.device
    data: Path | None
    out: Path


def plan(
    benchmark: str,
    methods: Sequence[str],
    seeds: int | Sequence[int],
    *,
    tasks: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    device: str = "auto",
    data: Path | str | None = None,
    out: Path | str = "results",
    fwt: bool = True,
) -> Plan:
    find_benchmark(benchmark)
    given = dict(overrides or {})
    if not methods:
        raise ConfigError("No method is named. Try --method caf-ewc, or `kenyon list methods`.")
    if len(set(methods)) != len(methods):
        raise ConfigError(f"A method is named twice in {','.join(methods)}.")
    known = {setting for method in methods for setting in settings(method)}
    for setting in given:
        if setting not in known:
            raise unknown(f"setting of {' or '.join(methods)}", setting, known)

    def config(method: str) -> Config:
        mine = {name: value for name, value in given.items() if name in settings(method)}
        return configure(benchmark, method, tasks=tasks, overrides=mine)

    configs = {method: config(method) for method in methods}
    sequential = any(c.build_method().schedule == "sequential" for c in configs.values())
    reference = config(REFERENCE) if fwt and sequential and REFERENCE not in configs else configs.get(REFERENCE)
    checked = Plan(
        configs,
        reference,
        check_seeds(seeds),
        choose_device(device),
        None if data is None else Path(data),
        Path(out),
    )
    for c in (*configs.values(), *([reference] if reference else [])):
        MethodFolder(checked.out, c).check()
    return checked


def check_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    chosen = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not chosen:
        raise ConfigError("There must be at least one seed.")
    if len(set(chosen)) != len(chosen):
        raise ConfigError(f"A seed is named twice in {','.join(map(str, chosen))}; each run needs its own.")
    if min(chosen) < 0:
        raise ConfigError(f"Seeds are 0 or larger, not {min(chosen)}.")
    return chosen


def execute(
    plan: Plan, *, progress: Progress | None = None, stop: Callable[[], bool] = lambda: False
) -> dict[str, Result]:
    """Carry out a plan. `stop` is asked after every epoch; when it says so, the state is saved and Interrupted
    raised. Doing the same again continues there.
    """
    progress = progress or Silent()
    source: Source | None = None  # read only if something has to be trained

    def result_of(config: Config) -> Result:
        nonlocal source
        folder = MethodFolder(plan.out, config)
        result = folder.result()
        for seeds in folder.fleets_to_train(plan.seeds, result):
            source = source or find_benchmark(config.benchmark).source.load(plan.data)
            result = _train_fleet(folder, config, source, seeds, plan, result, progress, stop)
        assert result is not None
        return result

    alone: dict[int, list[float]] = {}
    if plan.reference is not None:
        for run in result_of(plan.reference).complete_runs:
            alone[run.seed] = [row[t] for t, row in enumerate(run.accuracy)]
    results = {}
    for method, config in plan.configs.items():
        result = result_of(config)
        known = {**result.alone, **{run.seed: alone[run.seed] for run in result.runs if run.seed in alone}}
        if known != result.alone:
            result = replace(result, alone=known)
            MethodFolder(plan.out, config).save(result)
        results[method] = result.restricted(plan.seeds)
    return results


def run(
    benchmark: str = "digits",
    methods: str | Sequence[str] = ("finetune", "ewc", "caf-ewc"),
    seeds: int | Sequence[int] = 5,
    *,
    tasks: int | None = None,
    device: str = "auto",
    data: Path | str | None = None,
    out: Path | str = "results",
    fwt: bool = True,
    progress: Progress | None = None,
    **overrides: Any,
) -> dict[str, Result]:
    """Train methods on a benchmark and return their results by name.

    Keywords beyond these are settings, as with `--set`: epochs=20, lambda_sp=1e4. What the folder `out` already
    holds is not trained again. `fwt=False` leaves out the reference that forward transfer needs.
    """
    names = methods.split(",") if isinstance(methods, str) else list(methods)
    return execute(
        plan(
            benchmark,
            names,
            seeds,
            tasks=tasks,
            overrides=overrides,
            device=device,
            data=data,
            out=out,
            fwt=fwt,
        ),
        progress=progress,
    )


def build_trainer(config: Config, source: Source, seeds: Sequence[int], device: torch.device) -> Trainer:
    """The trainer of a configuration, standing at the beginning."""
    bench, method, arch = find_benchmark(config.benchmark), config.build_method(), config.architecture
    streams = [source.stream(s, tasks=config.tasks, validation=config.training.validation) for s in seeds]
    dtype = None if arch.precision == "auto" else getattr(torch, arch.precision)

    def net(learned: dict[str, tuple[int, ...]]) -> Net:
        return Net(
            bench.backbone(arch.width, arch.learners),
            streams[0].input_shape,
            streams[0].class_counts,
            learners=arch.learners,
            diversity=arch.diversity,
            gate=arch.gate,
            learned=learned,
            device=device,
            dtype=dtype,
        )

    bare = net({})
    learned = {name: shape for p in method.penalties for name, shape in p.learned(bare).items()}
    return Trainer(net(learned), streams, method, config.training)


def _train_fleet(
    folder: MethodFolder,
    config: Config,
    source: Source,
    seeds: tuple[int, ...],
    plan: Plan,
    before: Result | None,
    progress: Progress,
    stop: Callable[[], bool],
) -> Result:
    trainer = build_trainer(config, source, seeds, plan.device)
    state, identity = folder.state_path(seeds), folder.state_identity(seeds)
    if state.exists():
        trainer.position = load_state(state, trainer.tensors(), identity)
    at, epochs = trainer.position, config.training.epochs
    progress.fleet_starts(config, seeds, at.phase * epochs + at.epoch, len(trainer.phases) * epochs)
    saved = time.monotonic()

    def watch(trainer: Trainer) -> bool:
        nonlocal saved
        progress.epoch_done(trainer)
        stopping = stop()
        if stopping or time.monotonic() - saved > SAVE_EVERY:
            save_state(state, trainer.tensors(), trainer.position, identity)
            saved = time.monotonic()
        return stopping

    # Dense networks this small lose more to waking threads than they gain from them.
    small = not any(isinstance(part, torch.nn.Conv2d) for part in trainer.net.backbone.modules())
    with cpu_threads(1 if small else None):
        trainer.run(watch)
    progress.fleet_ends(at.seconds)
    for number, seed in enumerate(seeds):
        if at.diverged[number] is None:
            write_atomically(folder.weights_path(seed), weights_of(trainer, number))
    result = Result(
        config.as_dict(),
        trainer.net.parameter_count,
        sorted([*(before.runs if before else []), *runs_of(trainer)], key=lambda run: run.seed),
        [*(before.fleets if before else []), origin_of(trainer, seeds)],
        before.alone if before else {},
    )
    folder.save(result)
    state.unlink(missing_ok=True)
    return result
