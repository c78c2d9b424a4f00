"""Checksums: changed files are refused, and those of earlier versions are read as unsealed."""

from __future__ import annotations

import json
import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file

from kenyon.data import Source, find_source
from kenyon.errors import ResultsError
from kenyon.estimator.persistence import as_damage, read_learner
from kenyon.experiments.config import Config
from kenyon.experiments.grid import GridPoint
from kenyon.experiments.results import GameResult, Result
from kenyon.experiments.store import PointFolder, read_state
from kenyon.experiments.weights import read_weights
from kenyon.paper.analyses import analyse, find_analysis
from kenyon.report.page.sections import read_analysis
from kenyon.report.verify import Verified, accept, verify
from kenyon.training import Interrupted
from kenyon.training.checkpoint import load_state
from kenyon.utils.formats import ChangedError, check_json, has_checksum, json_checksum, with_checksum
from tests.changes import changed_bytes
from tests.estimator.small import taught
from tests.experiments.small import digits, numbers, stop_after
from tests.nothing_lost.small import FORMAT_1, the_state
from tests.unsealed import unsealed, write_unsealed

SCORES = Path(__file__).parents[2] / "benchmarks/h200-atari/atari/ewc/scores.json"
SAMPLE = 500  # changed bytes of every file whose bytes are too many


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return one_of_every_kind(tmp_path_factory.mktemp("made"))


def one_of_every_kind(out: Path) -> Path:
    """A result with weights and an analysis, scores, a state and a learner."""
    digits(out, seeds=2)
    folder = out / "digits/ewc"
    pertask = find_analysis("pertask")
    analyse(pertask, pertask.settings, folder, Result.load(folder / "result.json"), no_source, torch.device("cpu"))
    GameResult.load(SCORES).restricted([0]).save(out / "atari/ewc/scores.json")
    with pytest.raises(Interrupted):
        digits(out, ["mas"], seeds=1, epochs=2, stop=stop_after(1))
    taught(1).save(out / "learner.safetensors")
    return out


def no_source() -> Source:
    return find_source("digits").load(None)


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "out")
    return tmp_path / "out"


def states(found: list[Verified], out: Path) -> dict[str, str]:
    return {one.path.relative_to(out).as_posix(): one.state for one in found}


def the_learner(path: Path) -> Any:
    with as_damage(path):
        saved = read_learner(path)
        return asdict(saved.form), saved.parameters, [(n, t.numpy().tobytes()) for n, t in saved._tensors.items()]


def a_state(path: Path) -> Any:
    """Read a state as training does: its header, then its tensors."""
    state = read_state(path)
    assert state is not None
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ResultsError(f"{path}: {error}") from error
    at = load_state(path, tensors, state.identity)
    return state, asdict(at), [(name, tensor.numpy().tobytes()) for name, tensor in sorted(tensors.items())]


def weights_reader(folder: Path) -> Callable[[Path], Any]:
    result = Result.load(folder / "result.json")

    def read(path: Path) -> Any:
        tensors = read_weights(path, result.config, 1, result.weights[path.name]).tensors
        return [(name, tensor.numpy().tobytes()) for name, tensor in sorted(tensors.items())]

    return read


def readers(out: Path) -> dict[str, tuple[Path, Callable[[Path], Any]]]:
    """Readers of every kind of file; their results can be compared."""
    folder = out / "digits/ewc"
    return {
        "result": (folder / "result.json", lambda path: Result.load(path).to_json()),
        "scores": (out / "atari/ewc/scores.json", lambda path: GameResult.load(path).to_json()),
        "weights": (folder / "weights-1.safetensors", weights_reader(folder)),
        "analysis": (
            folder / "analysis/pertask.json",
            lambda path: {n: v for n, v in read_analysis(path)[0].items() if not n.endswith("hecksum")},
        ),
        "state": (the_state(out), a_state),
        "learner": (out / "learner.safetensors", the_learner),
    }


# ---------------------------------------------------------------------- changed, cut off, swapped, missing


@pytest.mark.parametrize("kind", ["result", "scores", "weights", "state", "learner"])
def test_no_changed_byte_is_believed(kind: str, out: Path) -> None:
    path, read = readers(out)[kind]
    size = path.stat().st_size
    places = random.Random(1).sample(range(size), min(size, SAMPLE))
    found = changed_bytes(path, read, places)
    assert found["believed"] == 0 and found["noticed"] + found["harmless"] == len(places)
    if path.suffix != ".json":
        assert found["harmless"] == 0  # there, white space may become other white space


def test_a_changed_digit_of_an_analysis_is_noticed(out: Path) -> None:
    path, read = readers(out)["analysis"]
    content = path.read_text()
    digits_at = [i for i, letter in enumerate(content) if letter.isdigit()]
    found = changed_bytes(path, lambda path: read(path) and None, digits_at[:200])
    assert found["noticed"] == len(digits_at[:200])
    # Neither measured anew over what has changed, nor shown.
    path.write_text(content.replace('"seed": 0', '"seed": 7'))
    pertask, folder = find_analysis("pertask"), out / "digits/ewc"
    result = Result.load(folder / "result.json")
    with pytest.raises(ChangedError, match=r"pertask\.json has changed .*kenyon verify --accept"):
        analyse(pertask, pertask.settings, folder, result, no_source, torch.device("cpu"))


@pytest.mark.parametrize("kind", ["result", "scores", "weights", "state", "learner"])
def test_no_file_that_was_cut_off_is_believed(kind: str, out: Path) -> None:
    path, read = readers(out)[kind]
    content = path.read_bytes()
    text = content.rstrip() if path.suffix == ".json" else content  # the last line's end says nothing
    for size in (0, 1, 7, 8, 9, 100, *(len(text) * part // 10 for part in range(1, 10)), len(text) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(ResultsError, match=path.name.replace(".", r"\.")):
            read(path)
        (one,) = (one for one in verify(path if kind != "weights" else path.parent) if one.path == path)
        assert one.state in ("changed", "unreadable")


def test_weights_that_were_swapped_renamed_or_removed(out: Path) -> None:
    folder = out / "digits/ewc"
    first, second = folder / "weights-0.safetensors", folder / "weights-1.safetensors"
    result = Result.load(folder / "result.json")
    first.rename(folder / "aside")
    second.rename(first)
    (folder / "aside").rename(second)
    found = {one.path.name: one for one in verify(folder)}
    assert found[first.name].state == found[second.name].state == "changed"
    assert found[first.name].why == "it is weights-1.safetensors"
    with pytest.raises(ResultsError, match="weights of another run"):
        read_weights(first, result.config, 0, result.weights[first.name])
    # Of the same run in another training: the header tells nothing, the checksum does.
    digits(out / "other", seeds=2, batch=8)
    other = Result.load(out / "other/digits/ewc/result.json")
    with pytest.raises(ChangedError, match="not the file that the result in this folder names"):
        read_weights(out / "other/digits/ewc" / first.name, other.config, 0, result.weights[first.name])
    first.unlink()
    second.rename(folder / "weights-7.safetensors")
    assert states(verify(folder), folder) == {
        "analysis/pertask.json": "whole",
        "result.json": "whole",
        "weights-0.safetensors": "missing",
        "weights-1.safetensors": "missing",
        "weights-7.safetensors": "left over",
    }


def test_a_checksum_that_was_taken_out_is_missed(out: Path) -> None:
    path = out / "digits/ewc/result.json"
    body = json.loads(path.read_text())
    for gone in ("checksum", "weights"):
        path.write_text(json.dumps({name: value for name, value in body.items() if name != gone}))
        with pytest.raises(ChangedError, match=r"result\.json has changed since Kenyon wrote it"):
            Result.load(path)
    write_unsealed(path)  # without both it is a file of an earlier version
    assert Result.load(path).unsealed == [0, 1]


def test_a_result_that_has_changed_is_neither_replaced_nor_added_to(out: Path) -> None:
    path = out / "digits/ewc/result.json"
    path.write_text(changed := path.read_text().replace('"seed": 1', '"seed": 2', 1))
    with pytest.raises(ChangedError):
        digits(out, seeds=3)
    assert path.read_text() == changed


# ---------------------------------------------------------------------- what does not matter


def test_layout_and_the_order_of_keys_do_not_matter(out: Path) -> None:
    path = out / "digits/ewc/result.json"
    as_ever, body = Result.load(path), json.loads(path.read_text())
    turned = dict(reversed(body.items()))
    for text in (json.dumps(body), json.dumps(turned, indent=7), json.dumps(body, indent=1).replace("\n", "\r\n")):
        path.write_bytes(text.encode())
        assert Result.load(path) == as_ever


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
OBJECTS = st.dictionaries(st.text(max_size=5).filter(lambda name: name != "checksum"), PLAIN, max_size=5)


@given(body=OBJECTS, indent=st.sampled_from([None, 1, 4]), escaped=st.booleans())
def test_what_was_written_is_whole_however_it_is_laid_out(body: dict[str, Any], indent: Any, escaped: bool) -> None:
    text = json.dumps(with_checksum(body), indent=indent, ensure_ascii=escaped)
    read = json.loads(text)
    assert has_checksum(read)
    check_json(dict(reversed(read.items())), Path("it"))
    assert {name: value for name, value in read.items() if name != "checksum"} == body


@given(body=OBJECTS, other=OBJECTS)
def test_other_contents_have_another_checksum(body: dict[str, Any], other: dict[str, Any]) -> None:
    same = json.dumps(body, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (json_checksum(body) == json_checksum(other)) == same


# ---------------------------------------------------------------------- of earlier and later versions


def test_files_of_an_earlier_version_are_unsealed_and_sealed_when_runs_are_added(tmp_path: Path) -> None:
    folder = tmp_path / "digits/ewc"
    shutil.copytree(FORMAT_1, folder)
    old = Result.load(folder / "result.json")
    assert old.unsealed == [0] and not old.weights
    assert {one.state for one in verify(tmp_path)} == {"unsealed"}
    new = digits(tmp_path, seeds=2, epochs=2, width=1, batch=64)["ewc"]
    assert new.unsealed == [0] and [*new.weights] == ["weights-1.safetensors"]
    assert numbers(new.restricted([0])) == numbers(old)
    found = {one.path.name: (one.state, one.why) for one in verify(tmp_path)}
    assert found["result.json"] == ("whole", "seeds 0: unsealed until they were saved again")
    assert found["weights-0.safetensors"][0] == "unsealed" and found["weights-1.safetensors"][0] == "whole"
    read_weights(folder / "weights-0.safetensors", new.config, 0, new.weights.get("weights-0.safetensors"))


def test_scores_of_an_earlier_version_are_unsealed() -> None:
    old = GameResult.load(SCORES)
    assert "checksum" not in json.loads(SCORES.read_text())
    assert old.unsealed == [run.seed for run in old.runs]


def test_what_a_newer_version_has_written_is_not_called_changed(out: Path) -> None:
    path = out / "digits/ewc/result.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(ResultsError, match="made by a newer version"):
        Result.load(path)


def test_a_state_whose_checksum_is_gone(out: Path) -> None:
    path = the_state(out)
    path.write_bytes(path.read_bytes().replace(b'"checksum"', b'"chfcksum"'))
    with pytest.raises(ResultsError, match="it has no checksum"):
        a_state(path)
    assert {one.path: one.state for one in verify(out)}[path] == "changed"


def test_a_state_that_names_other_runs_since_it_was_damaged_is_set_aside(out: Path) -> None:
    """The state is kept, although all runs that the changed file names are finished."""
    digits(out, ["mas"], seeds=[1], epochs=2)
    path = the_state(out)  # of seed 0
    path.write_bytes(path.read_bytes().replace(rb"\"seeds\": [0]", rb"\"seeds\": [1]"))
    with pytest.warns(UserWarning, match="its checksum is wrong"):
        digits(out, ["mas"], seeds=[1], epochs=2)
    assert not path.exists() and path.with_name(f"{path.name}.damaged").exists()


# ---------------------------------------------------------------------- several processes


def test_of_two_that_trained_the_same_run_result_and_weights_are_of_one(made: Path, tmp_path: Path) -> None:
    whole = Result.load(made / "digits/ewc/result.json")
    folder = PointFolder(tmp_path, GridPoint(Config.from_dict(whole.config)))
    start = threading.Barrier(6)

    def keep(number: int) -> None:
        runs = [replace(run, tasks=[f"{number}", "b"]) for run in whole.runs]
        start.wait()
        folder.add(replace(whole, runs=runs), lambda seed: f"weights of {number}".encode())

    threads = [threading.Thread(target=keep, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = Result.load(folder.result_path)
    (winner,) = {run.tasks[0] for run in found.runs}
    assert {path.read_text() for path in folder.path.glob("weights-*")} == {f"weights of {winner}"}
    assert {one.state for one in verify(tmp_path)} == {"whole"}


def test_what_is_added_while_another_changes_a_result_is_not_lost(made: Path, tmp_path: Path) -> None:
    """One process adds the reference of forward transfer while another one finishes a run."""
    whole = Result.load(made / "digits/ewc/result.json")
    folder = PointFolder(tmp_path, GridPoint(Config.from_dict(whole.config)))
    folder.add(whole.restricted([0]))
    adding = threading.Thread(target=lambda: folder.add(whole.restricted([1])))

    def slowly(result: Result) -> Result:
        adding.start()
        adding.join(0.3)  # it has to wait
        return replace(result, alone={0: [1.0, 2.0]})

    folder.change(slowly)
    adding.join()
    found = Result.load(folder.result_path)
    assert [run.seed for run in found.runs] == [0, 1] and found.alone == {0: [1.0, 2.0]}


# ---------------------------------------------------------------------- verify and accept


def test_every_kind_of_file_is_looked_at(out: Path) -> None:
    folder = out / "digits/ewc"
    (folder / "result.json.0badcafe-1.tmp").write_bytes(b"half")
    (folder / "state-1.safetensors.damaged").write_bytes(b"")
    (folder / "notes.txt").write_text("mine")
    (folder / "analysis/other.json").write_text('{"another": "program"}')
    (out / ".git").mkdir()
    (out / ".git/result.json").write_text("{")
    (out / ".sweep").mkdir()
    (out / ".sweep/plan.json").write_text('{"format": 1, "checksum": 1, "plan": {}}')
    (out / "empty").mkdir()
    (out / "empty/result.json").write_text("{}")
    assert states(verify(out), out) == {
        ".sweep/plan.json": "changed",
        "atari/ewc/scores.json": "whole",
        "digits/ewc/analysis/pertask.json": "whole",
        "digits/ewc/result.json": "whole",
        "digits/ewc/result.json.0badcafe-1.tmp": "left over",
        "digits/ewc/state-1.safetensors.damaged": "left over",
        "digits/ewc/weights-0.safetensors": "whole",
        "digits/ewc/weights-1.safetensors": "whole",
        f"digits/mas/{the_state(out).name}": "whole",
        "empty/result.json": "unreadable",
        "learner.safetensors": "whole",
    }
    assert [one.state for one in verify(out / "learner.safetensors")] == ["whole"]
    assert [one.path.name for one in verify(folder / "weights-1.safetensors")] == ["weights-1.safetensors"]
    (folder / "result.json").unlink()
    (folder / "result.json").symlink_to("nowhere")
    assert states(verify(folder), folder)["weights-0.safetensors"] == "left over"
    (out / "none").mkdir()
    for nothing, told in (("nowhere", "There is nothing at"), ("none", "Kenyon has written nothing at")):
        with pytest.raises(ResultsError, match=told):
            verify(out / nothing)


def test_an_edit_that_was_meant_is_accepted(out: Path) -> None:
    path = out / "digits/ewc/result.json"
    body = json.loads(path.read_text())
    body["runs"][0]["accuracy"][1][0], body["note"] = 12.5, "corrected by hand"
    path.write_text(json.dumps(body))
    (out / "digits/ewc/weights-1.safetensors").unlink()
    with pytest.raises(ChangedError):
        Result.load(path)
    assert accept(path).state == "whole"
    found, text = Result.load(path), json.loads(path.read_text())
    assert found.runs[0].accuracy[1][0] == 12.5 and found.unsealed == [0, 1]
    assert [*found.weights] == ["weights-0.safetensors"] and text["note"] == "corrected by hand"
    assert text["summary"] == json.loads(json.dumps(found.summary()))
    assert {one.state for one in verify(out / "digits/ewc")} == {"whole"}


def test_what_cannot_be_accepted(out: Path) -> None:
    path = out / "digits/ewc/result.json"
    with pytest.raises(ResultsError, match="Name the one file"):
        accept(path.parent)
    with pytest.raises(ResultsError, match="only JSON"):
        accept(out / "learner.safetensors")
    body = unsealed(path)
    del body["runs"][0]["seed"]
    path.write_text(broken := json.dumps(body))
    with pytest.raises(ResultsError, match="cannot be read as a Kenyon result"):
        accept(path)
    assert path.read_text() == broken
