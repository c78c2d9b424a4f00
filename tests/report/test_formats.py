"""Results as LaTeX, CSV and DataFrames, against text written by hand."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import kenyon.report
from kenyon.experiments.results import GameResult, GameRun, Result, Run
from kenyon.experiments.tidy import tidy_rows
from kenyon.report.formats import results_csv, results_latex, scores_latex

NAN = float("nan")


def result(method: str, matrices: list[list[list[float]]], alone: bool = False, **hyper: Any) -> Result:
    """Runs with seeds 0, 1, ...; `point` of the settings that start with lambda."""
    tasks = [["a_1", "b"], ["b", "a_1"], ["a_1", "b"]]
    runs = [Run(seed, matrix, [], [], [], tasks[seed]) for seed, matrix in enumerate(matrices)]
    config = {"benchmark": "toy", "method": method, "tasks": 2, "training": {"epochs": 3}, "hyper": hyper}
    return Result(config, 10, runs, [], {0: [50.0, 50.0]} if alone else {}, point=hyper)


def games(method: str, scores: list[list[list[float]]]) -> GameResult:
    config = {"benchmark": "arcade", "method": method, "games": ["pong", "breakout"], "training": {}}
    moments = [[0, 10], [0, 20], [1, 10], [1, 20]]
    return GameResult(config, 10, [GameRun(seed, matrix) for seed, matrix in enumerate(scores)], [], moments)


TWO = [[[90.0, 40.0], [80.0, 92.0]], [[94.0, 44.0], [84.0, 96.0]]]  # AAC 86 and 90, BWT -10 and -10
JOINT = [[[97.5, 98.5]]]
# Two evaluations a game; pong is met first.
PLAYED = [[[1.0, NAN], [2.0, NAN], [1.5, 3.0], [1.0, 5.0]]]


def shown() -> dict[str, Result]:
    return {
        "joint": result("joint", JOINT),
        "ewc[lambda_sp=1]": result("ewc", TWO, alone=True, lambda_sp=1),
        "finetune": result("finetune", [[[90.0, 50.0], [60.0, 91.0]]]),
        "random-init": result("random-init", [[[90.0, 50.0], [60.0, 91.0]]]),
    }


LATEX = r"""% toy: mean and standard error over n runs; needs \usepackage{booktabs}
\begin{tabular}{lrrrr}
\toprule
Method & AAC (\%) & BWT & FWT & $n$ \\
\midrule
finetune & $75.50$ & $-30.00$ & -- & 1 \\
ewc[lambda\_sp=1] & $88.00 \pm 2.00$ & $-10.00 \pm 0.00$ & $-10.00$, $n$ = 1 & 2 \\
joint & $98.00$ & -- & -- & 1 \\
\bottomrule
\end{tabular}"""


def test_latex_of_accuracies() -> None:
    """AAC 86 and 90: 88 ± 2 / sqrt(2) * sqrt(2). FWT of seed 0 alone: 40 - 50. References are never the best."""
    assert results_latex(shown()) == LATEX
    bold = LATEX.replace(r"$88.00 \pm 2.00$", r"$\mathbf{88.00 \pm 2.00}$")
    assert results_latex(shown(), best=True) == bold
    alone = {"finetune": shown()["finetune"]}
    assert "mathbf" not in results_latex(alone, best=True) and "FWT" not in results_latex(alone)
    assert "random-init" in results_latex({"random-init": shown()["random-init"]})


def test_latex_names_what_diverged_and_escapes() -> None:
    lost = result("ewc", [TWO[0], TWO[1]])
    lost.runs[1] = Run(1, [], [], [], [], ["a", "b"], diverged=[0, 1])
    text = results_latex({r"50%_of{a}&b#$^~\ ": lost})
    assert text.splitlines()[5] == (
        r"50\%\_of\{a\}\&b\#\$\textasciicircum{}\textasciitilde{}\textbackslash{}  & $86.00$ & $-10.00$ & 1 of 2 \\"
    )
    lost.runs[0] = lost.runs[1]
    assert results_latex({"ewc": lost}).splitlines()[1:6:2] == [
        r"\begin{tabular}{lr}",
        r"Method & $n$ \\",
        r"ewc & 0 of 2 \\",
    ]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX")
def test_latex_compiles(tmp_path: Path) -> None:
    body = "\n\n".join(results_latex(shown(), best=best) for best in (False, True))
    (tmp_path / "t.tex").write_text(
        rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{body}\end{{document}}"
    )
    subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"], cwd=tmp_path, check=True)


def test_latex_of_scores() -> None:
    """NAR, NP and NS are relative to fine-tuning, and `best` goes by NAR."""
    twice = [[[2 * v for v in row] for row in PLAYED[0]]]
    lines = scores_latex(
        "arcade", {"ewc": games("ewc", twice), "finetune": games("finetune", PLAYED)}, best=True
    ).splitlines()
    assert lines[3] == r"Method & NAR & NP & NS & pong & breakout & $n$ \\"
    cells = {line.split(" & ")[0]: line.split(" & ")[1:] for line in lines[5:7]}
    assert cells["ewc"][0].startswith(r"$\mathbf{") and not cells["finetune"][0].startswith(r"$\mathbf{")
    assert cells["finetune"][3:] == ["$1.00$", "$5.00$", r"1 \\"] and cells["ewc"][3:] == [
        "$2.00$",
        "$10.00$",
        r"1 \\",
    ]
    untuned = scores_latex("arcade", {"ewc": games("ewc", PLAYED)}, best=True)
    assert r"Method & pong & breakout & $n$ \\" in untuned and "mathbf" not in untuned


CSV = """\
benchmark,method,lambda_sp,seed,after_task,task,task_name,accuracy
toy,joint,,0,2,1,a_1,97.5
toy,joint,,0,2,2,b,98.5
toy,ewc,1,0,1,1,a_1,90.0
toy,ewc,1,0,1,2,b,40.0
toy,ewc,1,0,2,1,a_1,80.0
toy,ewc,1,0,2,2,b,92.0
toy,ewc,1,1,1,1,b,94.0
toy,ewc,1,1,1,2,a_1,44.0
toy,ewc,1,1,2,1,b,84.0
toy,ewc,1,1,2,2,a_1,96.0
"""


def test_csv_has_a_row_per_run_and_task() -> None:
    assert results_csv([shown()["joint"], shown()["ewc[lambda_sp=1]"]]) == CSV


def test_csv_of_scores_has_the_end_of_every_game() -> None:
    text = results_csv([games("ewc", PLAYED)])
    assert text.splitlines() == [
        "benchmark,method,seed,after_task,task,task_name,score",
        "arcade,ewc,0,1,1,pong,2.0",  # breakout has no score yet
        "arcade,ewc,0,2,1,pong,1.0",
        "arcade,ewc,0,2,2,breakout,5.0",
    ]


def test_settings_that_differ_are_columns() -> None:
    """Settings that differ within a method, not those that differ between methods."""
    longer = result("ewc", TWO, lambda_sp=1)
    longer.config["training"]["epochs"] = 9
    other = result("mas", TWO, lambda_sp=1)
    other.config["training"]["epochs"] = 5
    other.config["hyper"] = {"gamma": 2.0, **other.config["hyper"]}
    columns, rows = tidy_rows([result("ewc", TWO, lambda_sp=1), longer, other])
    assert columns == [
        "benchmark",
        "method",
        "lambda_sp",
        "epochs",
        "seed",
        "after_task",
        "task",
        "task_name",
        "accuracy",
    ]
    assert [row["epochs"] for row in rows[::8]] == [3, 9, 5] and len(rows) == 24
    both, _ = tidy_rows([result("ewc", TWO), games("ewc", PLAYED)])
    assert both[-2:] == ["accuracy", "score"]


def test_diverged_runs_and_missing_values_are_left_out() -> None:
    r = result("ewc", [TWO[0], [[90.0, NAN], [80.0, 92.0]]])
    r.runs[0] = Run(0, [[90.0, 40.0]], [], [], [], ["a", "b"], diverged=[1, 0])
    _, rows = tidy_rows([r])
    assert [(row["seed"], row["after_task"], row["task"]) for row in rows] == [(1, 1, 1), (1, 2, 1), (1, 2, 2)]


def test_to_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    one = shown()["ewc[lambda_sp=1]"]
    frame = one.to_pandas()
    assert list(frame.columns) == CSV.splitlines()[0].split(",") and len(frame) == 8
    last = frame[frame.after_task == frame.task.max()]
    assert one.aac is not None and last.groupby("seed").accuracy.mean().tolist() == list(one.aac.runs)
    several = kenyon.report.to_pandas(shown())
    assert isinstance(several, pandas.DataFrame) and set(several.method) == {
        "joint",
        "ewc",
        "finetune",
        "random-init",
    }
    assert kenyon.report.to_pandas([one]).equals(frame)
    assert games("ewc", PLAYED).to_pandas().score.tolist() == [2.0, 1.0, 5.0]
    assert kenyon.report.to_pandas([]).empty
