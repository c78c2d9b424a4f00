"""A bench from its plan to its file; nothing here depends on how fast the machine is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kenyon.bench import BenchResult, extents, new_result, run_bench
from kenyon.bench.device import Ceilings, Clock, Count, Effort, PeakMemory, in_turns
from kenyon.bench.result import Against, Record, Spread
from kenyon.bench.runner import EnsembleKey, Extent
from kenyon.bench.subject import synthetic
from kenyon.errors import ResultsError
from kenyon.experiments import find_benchmark
from kenyon.report.speed import draw_speed, speed_markdown, speed_tables

CPU = torch.device("cpu")


def a_result() -> BenchResult:
    """Make a result like that of a GPU."""
    record = Record(
        benchmark="r-cifar-100",
        method="caf-ewc",
        runs=5,
        learners=5,
        width=9,
        task=2,
        piece="step",
        sweeps=("pieces", "runs", "tasks"),
        ms=Spread(4.0, 3.9, 4.2, 20),
        images=1250.0,
        least=Count(1e11, 2e9),
        floor_ms=0.5,
        bound="bytes",
        memory_mib=900.0,
        against=(
            Against("float32", Spread(20.0, 19.0, 21.0, 20), Spread(25.0, 24.0, 26.0, 20)),
            Against("bfloat16", Spread(16.0, 15.0, 17.0, 20), Spread(20.0, 19.0, 21.0, 20)),
        ),
    )
    return BenchResult(
        device="Some GPU",
        kind="cuda",
        threads=16,
        precision="bfloat16",
        memory="CUDA memory of tensors",
        versions={"torch": "2.11", "kenyon": "1"},
        started="2030-01-01T00:00:00+00:00",
        quick=False,
        ceilings=Ceilings(4e12, 7e14, "bfloat16", 1024, 8192, 5),
        configs={"r-cifar-100/caf-ewc/5": {"tasks": 20}},
        records=[record, replace(record, runs=10, sweeps=("runs",), against=()), replace(record, piece="evaluation")],
        seconds=12.0,
        complete=True,
    )


def test_derived_numbers() -> None:
    step = a_result().records[0]
    assert step.ms_per_run == pytest.approx(0.8)
    assert step.images_per_s == pytest.approx(312_500)
    assert step.share == pytest.approx(0.125)


def test_a_result_survives_the_disk(tmp_path: Path) -> None:
    result = a_result()
    result.records.append(replace(result.records[0], task=5, memory_mib=None))
    result.save(tmp_path / "bench.json")
    again = BenchResult.load(tmp_path / "bench.json")
    assert repr(again) == repr(result)
    body = json.loads((tmp_path / "bench.json").read_text())
    assert body["format"] == 1 and body["records"][0]["derived"]["share_of_floor"] == 0.125
    assert body["records"][-1]["memory_mib"] is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 99}', '{"format": 1, "records": [{}]}'])
def test_a_file_that_is_no_bench_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "bench.json").write_text(text)
    with pytest.raises(ResultsError, match=r"bench\.json"):
        BenchResult.load(tmp_path / "bench.json")


def test_tables_and_figures_of_whatever_is_there(tmp_path: Path) -> None:
    """Both precisions of the plain reference; and a bench cut short after its first record."""
    whole = a_result()
    markdown = speed_markdown(whole)
    assert "same precision" in markdown and "| r-cifar-100, runs 5, 10 | 0.800 · 0.400 |" in markdown
    assert len(speed_tables(whole)) == 3
    draw_speed(whole, tmp_path / "whole.png")
    for name in ("whole.png", "whole.svg"):
        assert (tmp_path / name).stat().st_size > 1000
    short = a_result()
    short.records = short.records[1:2]
    assert len(speed_tables(short)) == 1
    draw_speed(short, tmp_path / "short.png")


def test_a_plan_measures_each_point_once() -> None:
    extent = Extent("digits", 2, runs=(1, 2, 4), learners=(1, 5), tasks=(1, 2), train=4, test=4)
    ensembles = extent.ensembles()
    base = EnsembleKey("digits", "caf-ewc", 2, 5)
    assert set(ensembles) == {
        *(EnsembleKey("digits", "ewc", runs, 1) for runs in (1, 2, 4)),
        *(EnsembleKey("digits", "caf-ewc", runs, 5) for runs in (1, 2, 4)),
        EnsembleKey("digits", "caf-ewc", 2, 1),
    }
    assert [point.task for point in ensembles[base]] == [1, 2]
    first, second = ensembles[base]
    assert first.pieces == {("step", False): ("tasks",), ("importance", False): ("tasks",)}
    assert second.pieces == {
        ("step", False): ("tasks", "runs", "learners"),
        ("importance", False): ("tasks",),
        ("step", True): ("pieces",),
        ("importance", True): ("pieces",),
        ("evaluation", True): ("pieces",),
    }


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_every_device_sweeps_runs_learners_and_tasks(kind: str) -> None:
    cifar, digits = extents(torch.device(kind))
    for extent in (cifar, digits):
        tasks = len(find_benchmark(extent.benchmark).source.class_counts)
        assert min(extent.tasks) == 1 and max(extent.tasks) == tasks
        assert extent.runs[0] == 1 and extent.learners[0] == 1 and extent.learners[-1] == 10
    assert kind == "cpu" or cifar.runs[-1] == 20


def test_synthetic_images_are_learnable_and_the_same_every_time() -> None:
    source = synthetic(find_benchmark("r-cifar-100"), train=10, test=2)
    again = synthetic(find_benchmark("r-cifar-100"), train=10, test=2)
    assert torch.equal(source.images, again.images)
    stream = source.stream(0)
    assert stream.class_counts == (5,) * 20 and stream.input_shape == (3, 32, 32)
    assert [len(split) for split in (stream.tasks[3].train, stream.tasks[3].validation, stream.tasks[3].test)] == [
        45, 5, 10,
    ]  # fmt: skip
    one, other = (source.images[source.labels == c].float() for c in (0, 1))
    assert one.std(0).mean() > 20 and (one.mean(0) - other.mean(0)).abs().mean() > 20


def test_synthetic_tasks_of_unequal_sizes_are_one_fleet() -> None:
    """Runs of one ensemble have tasks in the same order, as for Omniglot itself."""
    bench = find_benchmark("omniglot")
    source = synthetic(bench, train=2, test=1)
    assert [source.stream(seed).class_counts for seed in (0, 1)] == [bench.source.class_counts] * 2


def test_turns_alternate() -> None:
    calls: list[str] = []
    times = in_turns(
        [lambda: calls.append("a"), lambda: calls.append("b")], Clock(CPU), Effort(0, least=3, most=9, seconds=0.0)
    )
    assert calls == [*"ababab"]
    assert [len(t) for t in times] == [3, 3] and min(times[0]) >= 0
    (times_a,) = in_turns([lambda: None], Clock(CPU), Effort(0, least=1, most=4, seconds=1e9))
    assert len(times_a) == 4


def test_spread() -> None:
    assert Spread.of([4.0, 1.0, 3.0, 2.0, 5.0]) == Spread(3.0, 2.0, 4.0, 5)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 1)


def test_peak_memory_sees_a_large_tensor() -> None:
    memory = PeakMemory(CPU)
    with memory.watched():
        pass
    before = memory.mib
    torch.ones(2**25)  # not watched
    with memory.watched():
        kept = torch.ones(2**25)  # 128 MiB
        del kept
    after = memory.mib
    with memory.watched():
        pass
    assert memory.mib == after > before + 100


def test_what_was_measured_stays_when_the_bench_is_interrupted() -> None:
    result, told = new_result(CPU, quick=True), []

    def tell(doing: str, done: int, total: int) -> None:
        told.append(doing)
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_bench(extents(CPU, quick=True), CPU, result, tell)
    assert told[0] == "digits ewc, 2 runs"
    assert not result.complete and result.seconds > 0 and result.ceilings is not None
    assert {(r.method, r.runs) for r in result.records} == {("ewc", 2)}
    assert {r.piece for r in result.records} == {"step", "importance", "evaluation"}
    for r in result.records:
        assert r.ms.median > 0 and r.images > 0 and r.least.bytes > 0 and r.floor_ms > 0
        assert len(r.against) == ("pieces" in r.sweeps)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_gpu() -> None:
    device = torch.device("cuda")
    result = new_result(device, quick=True)
    run_bench(extents(device, quick=True), device, result, lambda *_: None)
    assert result.complete and result.benchmarks == ["r-cifar-100", "digits"] and result.precision == "bfloat16"
    for r in result.records:
        assert r.ms.median > 0 and r.memory_mib > 0
        assert [a.precision for a in r.against] == (["float32", "bfloat16"] if "pieces" in r.sweeps else [])
