"""A model is the network that its result was measured with, whatever its source."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from kenyon.data import find_source
from kenyon.errors import ConfigError, ResultsError
from kenyon.experiments.config import Config, configure
from kenyon.experiments.grid import GridPoint, RunSpec
from kenyon.experiments.results import Result
from kenyon.experiments.training import build_trainer
from kenyon.paper.analyses import Model, final_accuracy
from tests.paper.analyses.small import apart_model, conv_model, images_of, per_task_model, plain_logits
from tests.unsealed import write_unsealed


@pytest.mark.parametrize("method", ["ewc", "caf-ewc", "icl-ewc", "discrete", "joint"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_loaded_model_has_the_saved_accuracies(results: Path, method: str, seed: int) -> None:
    model = Model.load(results, "digits", method, seed, device="cpu")
    run = next(r for r in Result.load(results / "digits" / method / "result.json").runs if r.seed == seed)
    np.testing.assert_allclose(final_accuracy(model), run.matrix[-1], atol=1e-3)
    np.testing.assert_allclose(model.evaluation.own_accuracy[0], run.own_accuracy, atol=1e-3)
    assert model.learners == len(run.own_accuracy[0])


def test_a_point_of_a_grid(results: Path) -> None:
    one, other = (Model.load(results, "digits", "mas", point={"lambda_sp": v}, device="cpu") for v in (1.0, 2.0))
    assert one.saved is not None and one.saved.folder.name == "lambda_sp=1"
    assert not torch.equal(one.rows, other.rows)


@pytest.mark.parametrize("method", ["caf-ewc", "icl-ewc", "discrete"])
def test_a_live_model_is_the_loaded_one(results: Path, method: str) -> None:
    saved = Result.load(results / "digits" / method / "result.json")
    config = Config.from_dict(saved.config)
    trainer = build_trainer(
        [RunSpec(GridPoint(config), s) for s in (0, 1)], find_source("digits").load(None), torch.device("cpu")
    )
    assert torch.equal(Model.of_trainer(trainer, 1).initial(), Model.of_trainer(trainer, 1).rows)
    trainer.run()
    live, loaded = Model.of_trainer(trainer, 1), Model.load(results, "digits", method, 1, device="cpu")
    torch.testing.assert_close(live.rows[live.moved], loaded.rows[loaded.moved], rtol=0, atol=0)
    np.testing.assert_array_equal(final_accuracy(live), final_accuracy(loaded))


@pytest.mark.parametrize("make", [conv_model, apart_model, per_task_model])
def test_tests_are_those_of_the_plain_network(make) -> None:  # type: ignore[no-untyped-def]
    model = make()
    for task in model.tasks:
        x, labels = images_of(model, "test", task)
        said = torch.stack(
            [plain_logits(model, row, x, task).softmax(-1) for row in model.rows[model.rows_for(task)]]
        )
        right = 100 * (said.mean(0).argmax(-1) == labels).double().mean()
        assert final_accuracy(model)[task] == pytest.approx(float(right), abs=1e-4)


def test_configurations_come_back_from_results() -> None:
    config = configure("digits", "caf-ewc", tasks=3, overrides={"epochs": 2, "lambda_sp": 7.0})
    assert Config.from_dict(json.loads(json.dumps(config.as_dict()))) == config


# ---------------------------------------------------------------- what is refused


def copied(results: Path, tmp_path: Path, method: str = "ewc") -> Path:
    shutil.copytree(results / "digits" / method, tmp_path / "digits" / method)
    return tmp_path / "digits" / method


def without_origin(path: Path) -> None:
    """Rewrite weights as earlier versions did, whose results do not name them."""
    write_unsealed(path.with_name("result.json"))
    tensors = load_file(path)
    save_file(tensors, path)


def test_missing_weights_name_the_file_and_the_command(results: Path, tmp_path: Path) -> None:
    folder = copied(results, tmp_path)
    (folder / "weights-1.safetensors").unlink()
    with pytest.raises(ResultsError) as error:
        Model.load(tmp_path, "digits", "ewc", 1, device="cpu")
    assert "weights-1.safetensors" in str(error.value)
    assert "kenyon run digits --method ewc --seeds 2 --tasks 3 --set epochs=2 --set width=3" in str(error.value)
    assert "lambda_sp=10" in str(error.value)


def test_missing_weights_of_a_task_name_the_option(results: Path, tmp_path: Path) -> None:
    folder = copied(results, tmp_path)
    (folder / "weights-0-after-1.safetensors").unlink()
    with pytest.raises(ResultsError, match=r"after task 1 .*--keep-every-task"):
        Model.load(tmp_path, "digits", "ewc", 0, device="cpu").after(1)


def test_weights_of_another_seed_are_refused(results: Path, tmp_path: Path) -> None:
    folder = copied(results, tmp_path)
    shutil.copy(folder / "weights-1.safetensors", folder / "weights-0.safetensors")
    with pytest.raises(ResultsError, match="another run: ewc on digits, seed 1"):
        Model.load(tmp_path, "digits", "ewc", 0, device="cpu")


def test_weights_without_origin_are_known_by_their_accuracies(results: Path, tmp_path: Path) -> None:
    folder = copied(results, tmp_path)
    for seed in (0, 1):
        without_origin(folder / f"weights-{seed}.safetensors")
    Model.load(tmp_path, "digits", "ewc", 0, device="cpu")
    shutil.copy(folder / "weights-1.safetensors", folder / "weights-0.safetensors")
    with pytest.raises(ResultsError, match="does not belong to its result"):
        Model.load(tmp_path, "digits", "ewc", 0, device="cpu")


def test_weights_of_another_network_are_refused(results: Path, tmp_path: Path) -> None:
    folder = copied(results, tmp_path)
    write_unsealed(folder / "result.json")
    path = folder / "weights-0.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"dense1.bias": torch.zeros(1, 9)}, path)
    with pytest.raises(ResultsError, match="another network"):
        Model.load(tmp_path, "digits", "ewc", 0, device="cpu")
    save_file({"other": torch.zeros(3)}, path)
    with pytest.raises(ResultsError, match="other"):
        Model.load(tmp_path, "digits", "ewc", 0, device="cpu")
    path.write_bytes(b"nonsense")
    with pytest.raises(ResultsError, match="cannot be read"):
        Model.load(tmp_path, "digits", "ewc", 0, device="cpu")


def test_seeds_and_shapes_that_are_not_there(results: Path) -> None:
    with pytest.raises(ResultsError, match="no run of seed 7; there are: 0, 1"):
        Model.load(results, "digits", "ewc", 7, device="cpu")
    with pytest.raises(ResultsError, match="no result"):
        Model.load(results, "digits", "si", device="cpu")
    model = conv_model()
    with pytest.raises(ConfigError, match="rows of weights"):
        model.with_rows(torch.zeros(1, 3))
    with pytest.raises(ConfigError, match="no results folder"):
        model.after(1)
