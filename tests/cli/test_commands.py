"""The command line as a user meets it: in-process, through the same `main` that the program runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from kenyon import run as run_experiment
from kenyon.errors import ConfigError
from kenyon.experiments.config import configure
from tests.cli.conftest import Said
from tests.replicas import write_cifar_100
from tests.report.made import made, saved
from tests.unsealed import unsealed

SMALL = ["--epochs", "1", "--tasks", "2", "--no-fwt"]


def test_help_answers_without_pytorch() -> None:
    program = (
        "import sys; sys.argv = ['kenyon', '--help']\n"
        "from kenyon.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'sklearn' not in sys.modules and 'matplotlib' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_run_prints_a_table_saves_everything_and_draws(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    said = kenyon("run", "digits", "-m", "finetune,caf-ewc", "--seeds", 2, "--out", tmp_path, *SMALL)
    assert said.code == 0, said.err
    assert "finetune" in said.out and "caf-ewc" in said.out and "±" in said.out
    for name in ("finetune", "caf-ewc"):
        folder = tmp_path / "digits" / name
        result = json.loads((folder / "result.json").read_text())
        assert [run["seed"] for run in result["runs"]] == [0, 1]
        assert result["config"]["training"]["epochs"] == 1
        assert result["fleets"][0]["versions"]["torch"]
        assert (folder / "weights-1.safetensors").is_file()
        assert not list(folder.glob("state-*"))
    assert (tmp_path / "digits" / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "digits" / "figure.svg").is_file()


def test_json_is_the_last_line_and_has_the_agreed_form(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    words = ["run", "digits", "-m", "ewc,joint", "--seeds", "0,3", "--epochs", 1, "--tasks", 2]
    said = kenyon(*words, "--out", tmp_path, "--json")
    assert said.code == 0, said.err
    body = json.loads(said.out.splitlines()[-1])
    assert body["benchmark"] == "digits" and body["device"] == "cpu" and body["seconds"] > 0
    ewc = body["methods"]["ewc"]
    for name in ("aac", "fwt", "bwt"):
        assert set(ewc[name]) == {"mean", "sem", "runs"} and len(ewc[name]["runs"]) == 2
    assert 0 <= ewc["aac"]["mean"] <= 100 and ewc["seeds"] == [0, 3] and ewc["diverged"] == []
    assert body["methods"]["joint"]["bwt"] is None
    # Again: nothing is trained, the same is reported.
    again = json.loads(kenyon(*words, "--out", tmp_path, "--json").out.splitlines()[-1])
    assert again["methods"] == body["methods"]


def test_json_of_several_benchmarks_is_one_object(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    said = kenyon("run", "digits,digits-conv", "-m", "finetune", "--seeds", 1, "--out", tmp_path, "--json", *SMALL)
    found = json.loads(said.out.splitlines()[-1])["benchmarks"]
    assert {name: body["benchmark"] for name, body in found.items()} == {name: name for name in found}


def test_a_single_run_has_no_standard_error(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    said = kenyon("run", "-m", "finetune", "--seeds", "7,", "--out", tmp_path, "--json", *SMALL)
    assert json.loads(said.out.splitlines()[-1])["methods"]["finetune"]["aac"]["sem"] is None


def test_list_and_show(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    benchmarks = json.loads(kenyon("list", "benchmarks", "--json").out)["benchmarks"]
    cifar = next(b for b in benchmarks if b["name"] == "r-cifar-100")
    assert (cifar["tasks"], cifar["classes"]) == (20, 100)
    assert (cifar["parameters"], cifar["parameters_of_5_learners"]) == (837_252, 879_100)
    methods = json.loads(kenyon("list", "methods", "--json").out)["methods"]
    assert {"finetune", "joint", "random-init", "caf-ewc", "caf-mas", "ewc-af2"} <= {m["name"] for m in methods}
    assert "caf-ewc" in kenyon("list", "methods").out and "digits" in kenyon("list").out

    kenyon("run", "-m", "ewc,caf-ewc", "--seeds", 1, "--out", tmp_path, *SMALL)
    assert "digits" in kenyon("show", tmp_path).out
    assert "learner 5" in kenyon("show", tmp_path / "digits" / "caf-ewc").out
    assert "lambda_sp" in kenyon("show", tmp_path / "digits" / "ewc" / "result.json").out
    assert json.loads(kenyon("show", tmp_path, "--json").out)["digits"]["methods"]["ewc"]


def test_show_tells_results_of_one_method_apart(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    words = ("run", "digits", "--method", "finetune", "--seeds", 1, "--tasks", 2, "--no-fwt")
    for epochs in (1, 2):
        assert kenyon(*words, "--epochs", epochs, "--out", tmp_path / str(epochs)).code == 0
    shown = json.loads(kenyon("show", tmp_path, "--json").out)["digits"]["methods"]
    assert set(shown) == {"finetune[epochs=1]", "finetune[epochs=2]"}


def test_learners_is_short_for_a_setting(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    words = ["run", "-m", "caf-ewc,icl-ewc,ewc", "--seeds", 1, *SMALL]
    said = kenyon(*words, "--learners", 3, "--out", tmp_path / "one")
    assert said.code == 0, said.err
    for name, expected in (("caf-ewc", (3, 5)), ("icl-ewc", (3, 5)), ("ewc", (1, 16))):
        config = json.loads((tmp_path / "one/digits" / name / "result.json").read_text())["config"]
        assert (config["architecture"]["learners"], config["architecture"]["width"]) == expected
    said = kenyon("run", "-m", "mcl-ewc", "--learners", "2,3", "--seeds", 1, "--out", tmp_path / "grid", *SMALL)
    assert "mcl-ewc: 2 points" in said.out and " learners=2" in said.out and " learners=3" in said.out


def test_replay_says_that_it_keeps_old_samples(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    methods = json.loads(kenyon("list", "methods", "--json").out)["methods"]
    assert [m["name"] for m in methods if m["keeps_samples"]] == ["er"]
    assert "keep old samples" in next(m["about"] for m in methods if m["name"] == "er")
    said = kenyon("run", "-m", "er,ewc", "--seeds", 1, "--out", tmp_path, "--set", "memory=3", *SMALL)
    told = " ".join(said.out.split())  # a caption is as wide as its table
    assert "er keeps 3 old samples of every class" in told and "ewc keeps" not in told
    assert json.loads((tmp_path / "digits/er/result.json").read_text())["config"]["hyper"]["memory"] == 3


def test_data_list_says_what_is_there_and_where(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    write_cifar_100(tmp_path)
    said = kenyon("data", "list", "--data", tmp_path)
    assert "cifar-100-python" in said.out and "kenyon data get cifar-10" in said.out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["run", "digit"], "digits"),
        (["run", "-m", "caf_ewc"], "caf-ewc"),
        (["run", "-m", "ewc,ewc"], "twice"),
        (["run", "--seeds", "0,1,1"], "twice"),
        (["run", "--seeds", "0"], "at least 1"),
        (["run", "--seeds", "-1,2"], "0 or larger"),
        (["run", "--seeds", "many"], "many"),
        (["run", "--tasks", "6"], "5 tasks"),
        (["run", "--tasks", "0"], "tasks"),
        (["run", "--epochs", "0"], "epochs"),
        (["run", "-m", "ewc", "--set", "lambda_sp=-1"], "lambda_sp"),
        (["run", "-m", "ewc", "--set", "lambda_sp=nan"], "lambda_sp"),
        (["run", "-m", "ewc", "--set", "lambda_sp=inf"], "lambda_sp"),
        (["run", "-m", "ewc", "--set", "lambda_sp=big"], "lambda_sp"),
        (["run", "-m", "ewc", "--set", "lamda_sp=1"], "lambda_sp"),
        (["run", "-m", "ewc", "--set", "lambda_sp"], "name=value"),
        (["run", "-m", "ewc", "--set", "gamma=1"], "gamma"),
        (["run", "-m", "caf-ewc", "--set", "learners=0"], "learners"),
        (["run", "-m", "caf-ewc", "--learners", "0"], "learners"),
        (["run", "-m", "caf-ewc", "--learners", "many"], "learners"),
        (["run", "-m", "caf-ewc", "--learners", "3", "--set", "learners=4"], "twice"),
        (["run", "-m", "ewc", "--learners", "3"], "ewc has one"),
        (["run", "-m", "icl-ewc", "--set", "diversity=low"], "diversity"),
        (["run", "-m", "er", "--set", "memory=0"], "memory"),
        (["run", "-m", "rwalk", "--set", "rwalk_form=third"], "third"),
        (["run", "-m", "caf-ewc", "--set", "diversity=huge"], "diversity"),
        (["run", "-m", "caf-ewc", "--set", "fisher=guess"], "fisher"),
        (["run", "--set", "validation=0"], "validation"),
        (["run", "--set", "validation=0.001"], "validation"),
        (["run", "--set", "rate=0"], "rate"),
        (["run", "--set", "rate=nan"], "rate must be a finite number"),
        (["run", "--set", "drop=1e308"], "drop must be a finite number, at most 3.4e+38"),
        (["run", "-m", "ewc", "--set", "lambda_sp=1e300"], "lambda_sp must be a finite number, at most 3.4e+38"),
        (["run", "--set", f"patience={10**30}"], "patience must be at most 1,000,000,000,000"),
        (["run", "--set", f"epochs={'9' * 5000}"], "epochs must be a whole number, not '999"),
        (["run", "-m", "caf-ewc", "--learners", "1000000"], "at most 10,000"),
        (["run", "--seeds", "1000000"], "at most 10,000"),
        (["run", "--set", "batch=0"], "batch"),
        (["run", "--device", "tpu"], "tpu"),
        (["bench", "--device", "gpu"], "gpu"),
        (["bench", "--quick", "--out", "/proc/nowhere"], "--out"),
        (["run", "r-cifar-100", "--data", "nowhere"], "nowhere"),
        (["list", "xq"], "benchmarks"),
        (["show", "nothing-here"], "nothing-here"),
        (["data", "get", "cifar100"], "cifar-100"),
        (["data", "get", "cifar-100", "--url", "file:///etc/passwd"], "http"),
    ],
)
def test_bad_input_gets_one_clear_message(
    kenyon: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = kenyon(*words)
    assert said.code not in (0, None)
    assert named in said.err, said.err
    assert "Traceback" not in said.err + said.out


def test_missing_data_says_where_it_looked_and_how_to_get_it(
    kenyon: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KENYON_DATA", str(tmp_path / "here"))
    monkeypatch.chdir(tmp_path)
    said = kenyon("run", "r-cifar-100", "-m", "finetune", "--no-fwt")
    assert said.code == 1 and "kenyon data get cifar-100" in said.err and str(tmp_path / "here") in said.err


def test_missing_data_is_said_before_other_benchmarks_are_trained(
    kenyon: Callable[..., Said], tmp_path: Path
) -> None:
    out = tmp_path / "results"
    said = kenyon("run", "digits,core50", "--method", "finetune", "--epochs", 1, "--data", tmp_path, "--out", out)
    assert said.code == 1 and "core50 was not found" in said.err and not list(out.rglob("*.json"))


def test_another_configuration_is_refused_and_nothing_is_lost(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    kenyon("run", "-m", "ewc", "--seeds", 1, "--out", tmp_path, *SMALL)
    before = (tmp_path / "digits" / "ewc" / "result.json").read_bytes()
    said = kenyon("run", "-m", "ewc", "--seeds", 1, "--out", tmp_path, *SMALL, "--set", "lambda_sp=3")
    assert said.code == 1 and "lambda_sp" in said.err and "--out" in said.err
    assert (tmp_path / "digits" / "ewc" / "result.json").read_bytes() == before


def test_a_results_folder_that_cannot_be_made_is_said_before_training(
    kenyon: Callable[..., Said], tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    said = kenyon("run", "-m", "finetune", "--seeds", 1, "--out", blocked, *SMALL)
    assert said.code == 1 and f"{blocked} is a file, where a folder has to be" in said.err and "--out" in said.err


def test_bench_prints_tables_saves_and_draws(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    said = kenyon("bench", "--quick", "--device", "cpu", "--out", tmp_path / "new" / "here.json", "--json")
    assert said.code == 0, said.err
    body = json.loads(said.out.splitlines()[-1])
    assert body["complete"] and body["kind"] == "cpu" and body["versions"]["torch"] and body["threads"] >= 1
    assert {sweep for record in body["records"] for sweep in record["sweeps"]} == {
        "pieces", "runs", "learners", "tasks",
    }  # fmt: skip
    assert body["configs"]["digits/caf-ewc/5"]["architecture"]["width"] == 3
    assert "times" in said.err and "scaling over learners" in said.err
    files = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert files == ["here.json", "here.png", "here.svg"]


def test_an_interrupted_bench_keeps_what_was_measured(
    kenyon: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kenyon.bench import runner

    real, calls = runner._measure_ensemble, []

    def second_is_too_long(*given: Any) -> None:
        calls.append(given)
        if len(calls) > 1:
            raise KeyboardInterrupt
        real(*given)

    monkeypatch.setattr(runner, "_measure_ensemble", second_is_too_long)
    monkeypatch.setattr(import_module("kenyon.report.speed"), "draw_speed", lambda result, path: path)
    said = kenyon("bench", "--quick", "--device", "cpu", "--out", tmp_path)
    assert said.code == 130 and "kept" in said.err and "digits" in said.out
    assert not json.loads((tmp_path / "bench.json").read_text())["complete"]


def test_bench_says_before_measuring_that_it_cannot_write(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder.json").mkdir()
    for out in (tmp_path / "file", tmp_path / "folder.json"):
        said = kenyon("bench", "--quick", "--out", out)
        assert said.code == 1 and str(out) in said.err and "--out" in said.err and not said.out


def test_a_damaged_result_or_state_is_named(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    folder = tmp_path / "digits" / "finetune"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text("{}")
    said = kenyon("run", "-m", "finetune", "--seeds", 1, "--out", tmp_path, *SMALL)
    assert said.code == 1 and "result.json" in said.err
    (folder / "result.json").unlink()
    (folder / "state-00000000.safetensors").write_bytes(b"not a state")
    said = kenyon("run", "-m", "finetune", "--seeds", 1, "--out", tmp_path, *SMALL)
    assert said.code == 0 and "state-00000000.safetensors cannot be used" in said.err and "start again" in said.err
    assert (folder / "state-00000000.safetensors.damaged").read_bytes() == b"not a state"


EXAMPLE = Path(__file__).parents[2] / "examples" / "own_stream.py"


def test_a_users_own_file_is_a_benchmark(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    words = ["run", EXAMPLE, "-m", "ewc,caf-ewc", "--seeds", 2, "--out", tmp_path, *SMALL]
    for _ in range(2):  # again: nothing is trained
        said = kenyon(*words)
        assert said.code == 0, said.err
        assert (tmp_path / "own-stream" / "ewc" / "result.json").is_file()
    broken = tmp_path / "json.py"  # named like a module of Python's own, which must stay
    broken.write_text("1 / 0")
    assert "ZeroDivisionError" in kenyon("run", broken).err
    assert sys.modules["json"] is json
    assert "no file" in kenyon("run", tmp_path / "missing.py").err


def test_runs_that_do_not_stay_finite_are_told_and_shown(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    said = kenyon("run", "-m", "finetune", "--seeds", 2, "--out", tmp_path, *SMALL, "--set", "rate=1e20", "--json")
    assert said.code == 1 and "seed 1 stopped" in said.err and "No run stayed finite" in said.err
    finetune = json.loads(said.out.splitlines()[-1])["methods"]["finetune"]
    assert finetune["aac"] is None and finetune["diverged"] == [0, 1]
    for form in ([], ["--json"], ["--markdown"], ["--format", "latex"], ["--format", "csv"]):
        assert kenyon("show", tmp_path, *form).code == 0
    assert kenyon("show", tmp_path / "digits" / "finetune").code == 0


def test_protection_that_shakes_a_run_apart_is_told(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    sgd = ("optimiser=sgd", "schedule=step", "validation=0", "rate=0.05", "lambda_sp=1e13")
    settings = [word for setting in sgd for word in ("--set", setting)]
    said = kenyon("run", "-m", "ewc", "--seeds", 1, "--out", tmp_path, *SMALL, *settings)
    assert "no longer finite in task 2" in said.err and "rate x strength x importance was" in said.err
    assert "A lower learning rate or lambda_sp" in said.out


def test_what_may_be_lowered_is_named_where_runs_do_not_stay_finite(
    kenyon: Callable[..., Said], tmp_path: Path
) -> None:
    """A rate far too high goes back to the usual one, and strengths of the user's own are named."""
    changed = ["--set", "rate=1e20", "--set", "lambda_sp=1e38"]
    said = kenyon("run", "-m", "ewc", "--seeds", 1, "--out", tmp_path / "my runs", *SMALL, *changed)
    assert "A lower learning rate or lambda_sp (1e+38) may give them: kenyon run digits" in said.out
    assert "--set rate" not in said.out and f"--out '{tmp_path}/my runs-rate-0.01'" in said.out


def test_several_benchmarks_in_one_command(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    said = kenyon("run", "digits,digits", "--out", tmp_path)
    assert said.code == 1 and "named twice in digits,digits" in said.err
    said = kenyon("run", " , ", "--out", tmp_path)
    assert said.code == 1 and "No benchmark is named" in said.err
    said = kenyon("run", "digits,nonsense", "--out", tmp_path)
    assert said.code == 1 and "nonsense" in said.err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("finished", [False, True])
def test_unfinished_runs_are_named(kenyon: Callable[..., Said], tmp_path: Path, finished: bool) -> None:
    state = tmp_path / "results/digits/ewc/state-0123.safetensors"
    state.parent.mkdir(parents=True)
    state.write_bytes(b"")
    if finished:
        saved(tmp_path / "results", made("mas"))
    for words in (["show"], ["report", "--out", tmp_path / "r.html"]):
        said = kenyon(words[0], tmp_path / "results", *words[1:])
        assert said.code == (0 if finished else 1)
        assert "Unfinished runs are in digits/ewc: the command that began them resumes" in said.err


def test_the_picture_is_of_what_was_there_too(
    kenyon: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[list[str]] = []
    monkeypatch.setattr("kenyon.cli.results.draw_results", lambda results, path: drawn.append([*results]) or path)
    run = ("run", "digits", "--seeds", 1, "--out", tmp_path, *SMALL, "--method")
    kenyon(*run, "finetune,ewc")
    said = kenyon(*run, "mas")
    assert "with ewc, finetune, which were there" in said.err
    kenyon(*run, "ewc")
    assert [sorted(names) for names in drawn] == [["ewc", "finetune"], *[["ewc", "finetune", "mas"]] * 2]
    other = unsealed(tmp_path / "digits" / "mas" / "result.json")
    other["config"]["training"]["rate"] = 0.5  # as by another program: it is no longer of the same settings
    (tmp_path / "digits" / "mas" / "result.json").write_text(json.dumps(other))
    said = kenyon(*run, "ewc")
    assert said.code == 0 and drawn[-1] == ["ewc"]


def test_two_forms_of_one_answer_are_refused(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    for words in (("--json", "--markdown"), ("--json", "--format", "csv"), ("--markdown", "--format", "latex")):
        said = kenyon("show", tmp_path, *words)
        assert said.code == 1 and "Choose one" in said.err
    assert "no format called 'xml'" in kenyon("show", tmp_path, "--format", "xml").err
    assert "--best is for LaTeX" in kenyon("show", tmp_path, "--best").err


def test_what_other_programs_call_it_is_known() -> None:
    for words, meant in (({"lr": 0.1}, "rate"), ({"batch_size": 3}, "batch"), ({"n_epochs": 3}, "epochs")):
        with pytest.raises(ConfigError, match=f"Here it is called {meant}"):
            configure("digits", "ewc", overrides=words)
    for name, meant in (("method", "methods"), ("seed", "seeds")):
        with pytest.raises(ConfigError, match=rf"takes {meant}=\.\.\., not {name}"):
            run_experiment("digits", **{name: "ewc"})


def test_settings_are_listed_with_their_values(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    said = kenyon("list", "settings", "--method", "caf-ewc", "--benchmark", "r-cifar-100", "--json")
    rows = {row["name"]: row for row in json.loads(said.out.splitlines()[-1])["settings"]}
    assert rows["lambda_sp"]["value"] == 10000 and rows["epochs"]["value"] == 100 and rows["width"]["value"] == 9
    assert rows["af1_heads"]["value"] == "open" and rows["afs_form"]["value"] == "published"
    assert "caf-mas" in rows["gamma"]["methods"] and "eta" not in rows
    said = kenyon("list", "settings")
    assert said.code == 0 and "eta" in said.out and "share of these nodes" in said.out
    for words, why in (
        (("methods", "--method", "ewc"), "are for `kenyon list settings`"),
        (("settings", "--benchmark", "digits"), "give --method too"),
        (("settings", "--method", "ewx"), "no method called 'ewx'"),
    ):
        said = kenyon("list", *words)
        assert said.code == 1 and why in said.err
