"""A package that is not installed, and one that is and cannot be imported, are told apart."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kenyon.data import from_hugging_face
from kenyon.errors import ConfigError, optional_import
from kenyon.estimator.export import _onnx
from kenyon.experiments.hyper_search import import_optuna
from kenyon.experiments.tidy import to_pandas
from kenyon.integrations.loggers import check_tensorboard, check_wandb
from kenyon.rl.atari_envs import check_rom
from kenyon.sweep.ray_cluster import _ray
from kenyon.sweep.storage import _file_system


def package(folder: Path, name: str, content: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(content)


def attempt(name: str, *packages: str) -> None:
    with optional_import("The thing", "things", name, *packages):
        __import__(name)


def test_what_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"^The thing needs kxa, which is not installed: .*'kenyon\[things\]'\.$"):
        attempt("kxa")
    package(tmp_path, "kxb", "import kx_that_it_needs")
    package(tmp_path, "kxc", "raise RuntimeError('operator vision::nms does not exist')")
    package(tmp_path, "kxd", "from kxc import thing")
    package(tmp_path, "kxe", "")
    (tmp_path / "kxf").mkdir()  # a folder, such as wandb's own for its runs
    importlib.invalidate_caches()
    for name, reason in (
        ("kxb", "ModuleNotFoundError: No module named 'kx_that_it_needs'"),
        ("kxc", "RuntimeError: operator vision::nms does not exist"),
        ("kxd", "RuntimeError: operator vision::nms does not exist"),
    ):
        with pytest.raises(ConfigError, match=f"needs {name}, which is installed but cannot be imported: {reason}"):
            attempt(name)
    attempt("kxe")
    for packages, told in (
        (("kxe",), r"needs kxe, which is installed but cannot be imported: .*'new_name'"),
        (("kxf",), r"needs kxf, which is not installed"),
        (("kxe", "kxa", "kxf"), r"needs kxa and kxf, which are not installed"),
    ):
        with pytest.raises(ConfigError, match=told), optional_import("The thing", "things", *packages):
            exec(f"from {packages[-1]} import new_name")


def test_another_error_of_the_users_is_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt), optional_import("The thing", "things", "os"):
        raise KeyboardInterrupt


SITES: dict[str, tuple[str, Callable[[], object]]] = {
    "datasets": ("hf", lambda: from_hugging_face("some/where", "x", "y")),
    "fsspec": ("remote", lambda: _file_system("s3://somewhere/store")),
    "onnxruntime": ("onnx", lambda: _onnx(*[None] * 3)),  # type: ignore[arg-type]
    "optuna": ("search", import_optuna),
    "pandas": ("pandas", lambda: to_pandas([])),
    "ray": ("ray", _ray),
    "tensorboard": ("tensorboard", check_tensorboard),
    "wandb": ("wandb", check_wandb),
    "ale_py": ("atari", lambda: check_rom("Boxing", "boxing")),
    "lightning": ("lightning", lambda: importlib.import_module("kenyon.integrations.lightning")),
    "transformers": ("transformers", lambda: importlib.import_module("kenyon.integrations.huggingface")),
    "avalanche": ("avalanche", lambda: importlib.import_module("kenyon.integrations.avalanche")),
}


OTHERS = {"onnxruntime": ("onnx", "onnxscript"), "ale_py": ("gymnasium",), "transformers": ("accelerate",)}


@pytest.mark.parametrize("name", SITES)
@pytest.mark.parametrize("there", [False, True])
def test_everywhere(name: str, there: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever is installed here: a package of that name that lacks a dependency, or none."""
    extra, use = SITES[name]
    integrations = [f"kenyon.regularizers.{module}" for module in ("avalanche", "huggingface", "lightning")]
    for module in [m for m in sys.modules if m.partition(".")[0] == name or m in integrations]:
        monkeypatch.delitem(sys.modules, module)
    if name == "tensorboard":
        monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    if there:
        monkeypatch.syspath_prepend(str(tmp_path))
        package(tmp_path, name, "import a_dependency_that_is_missing")
        for other in OTHERS.get(name, ()):
            package(tmp_path, other, "")
    else:
        monkeypatch.setitem(sys.modules, name, None)
    told = "installed but cannot be imported: .*a_dependency_that_is_missing" if there else "not installed"
    with pytest.raises(ConfigError, match=rf"{told}.*kenyon\[{extra}\]"):
        use()
