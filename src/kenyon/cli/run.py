"""`kenyon run`: train methods on benchmarks, and show, save and draw the results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kenyon.cli.options import Json, experiment_options

if TYPE_CHECKING:
    from rich.console import Console

    from kenyon.experiments.runner import Plan


@experiment_options(
    "benchmark", "method", "seeds", "config", "tasks", "epochs", "games", "steps", "device", "data", "out", "set_",
    "learners", "fleet", "fwt", "keep_every_task", "deterministic", "log", "json",
)  # fmt: skip
def run(json: Json = False, **options: Any) -> None:
    """Train methods on a benchmark, and show, save and draw what they reached.

    Run again, it continues what was interrupted and reports what is there. Results are in
    OUT/BENCHMARK/METHOD/result.json; those of a grid in a folder a point, METHOD/lambda_sp=1000/result.json.
    """
    import time

    from kenyon.cli.consoles import stderr, stdout, tell_json
    from kenyon.cli.progress import watched
    from kenyon.cli.results import bodies_of, draw, show_results
    from kenyon.experiments.runner import check_data, execute, plan_all
    from kenyon.experiments.scheduler import Incomplete
    from kenyon.experiments.spec import from_command_line
    from kenyon.utils.clock import since

    started = time.perf_counter()
    # All are planned before the first is trained, so that errors show at once.
    plans = plan_all(from_command_line(options))
    for name, planned in plans.items():
        check_data(name, planned)
    notes = stderr()
    output = notes if json else stdout()
    found: dict[str, dict[str, Any]] = {}
    missing: list[Incomplete] = []
    for name, planned in plans.items():
        if len(plans) > 1:
            notes.print(name, style="bold")
        with watched(notes, "update" if planned.games else "epoch") as (progress, stopping):
            try:
                found[name] = execute(planned, progress=progress, stop=stopping)
            except Incomplete as incomplete:  # raised at the end
                missing.append(incomplete)
                found[name] = incomplete.results
        show_results(found[name], planned.out, str(planned.out / name), output)
        if planned.keep_every:
            _report_unkept(planned, notes)
    if json:
        bodies = bodies_of(found, since(started), next(iter(plans.values())).device)
        (body, *others) = bodies.values() if [*found] == [*bodies] else [{"benchmarks": bodies}]
        tell_json({"benchmarks": bodies} if others else body)
    # What may still fail comes last, after everything computed was shown.
    for name, results in found.items():
        draw(results, plans[name].out / name / "figure.png", notes, name)
    if missing:
        raise missing[0]


def _report_unkept(planned: Plan, notes: Console) -> None:
    """Name runs whose weights between tasks were not kept: they were trained before these were asked for."""
    from kenyon.experiments.store import PointFolder

    for point in planned.points:
        if point.config.build_method().schedule != "sequential":
            continue
        folder, places = PointFolder(planned.out, point), range(1, point.config.tasks)
        without = [s for s in planned.seeds if not all(folder.weights_path(s, after).is_file() for after in places)]
        if without:
            notes.print(
                f"{point.label}: seed {', '.join(map(str, without))} was trained without --keep-every-task, and its "
                "weights between tasks are not there. A new --out trains it again.",
                style="yellow",
                soft_wrap=True,
            )
