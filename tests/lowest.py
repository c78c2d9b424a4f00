"""The oldest packages that pyproject.toml allows, and the tests that touch what is used of each.

    python tests/lowest.py            # requirements, as pip takes them
    python tests/lowest.py --tests    # files and folders, as pytest takes them

For `make test-lowest`. PyTorch is left as it resolves: each of its releases is gigabytes, and most have no build for
CPUs in a package index. What these packages bring along is as new as they allow, as it would be for a user.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
PYTHON = (3, 11)  # whose oldest packages are meant: newer Pythons need newer ones, and pip finds those

LEFT_OUT = {  # extras, and why their bounds are not tried here
    "avalanche": "needs a torchvision made for the same build of PyTorch",
    "docs": "tools of the site",
    "hf": "80 MB of pyarrow and pandas",
    "lightning": "brings a second copy of what training needs; tests/integrations runs with it where it is installed",
    "ray": "80 MB; tests/sweep runs with it where it is installed",
    "transformers": "likewise, by make test-programs",
    "wandb": "starts a service of 60 MB",
}
TOOLS = ("ruff", "mypy")  # of dev: what they find changes with every release

# What touches each package. Not here: the kernels, the equations, and what kills processes.
TESTS = (
    "tests/cli/test_commands.py",  # Typer, Rich, Matplotlib's charts
    "tests/cli/test_consoles.py",
    "tests/cli/test_data.py",  # Rich's progress
    "tests/cli/test_search.py",  # Optuna
    "tests/cli/test_analyse.py",  # Matplotlib's color maps, Pillow's pictures
    "tests/data",  # Pillow's decoding
    "tests/estimator",  # scikit-learn's own checks, ONNX, safetensors
    "tests/experiments/test_logged.py",  # TensorBoard
    "tests/experiments/test_search.py",
    "tests/nothing_lost/test_states.py",  # safetensors
    "tests/report",
    "tests/rl/test_atari.py",  # ALE and Gymnasium
    "tests/rl/test_watching.py",
    "tests/benchmarks",
    "tests/datasets",
    "tests/sweep/test_leases.py",  # fsspec
    "tests/sweep/test_sweep.py",
    "tests/paper/theory/test_pictures.py",
    "tests/training/test_state.py",
)


def lowest(project: dict[str, object]) -> list[str]:
    """Every requirement `name>=bound` of the project and its extras, as `name==bound`."""
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict) and isinstance(project["dependencies"], list)
    wanted = [*project["dependencies"], *(line for name in extras if name not in LEFT_OUT for line in extras[name])]
    return [pinned(line) for line in wanted if not line.startswith(TOOLS)]


def pinned(requirement: str) -> str:
    if re.match(r"torch\b", requirement):
        return requirement
    found = re.fullmatch(r"([\w-]+)>=([\d.]+)(,<[\d.]+)?", requirement)
    if found is None:
        raise SystemExit(
            f"pyproject.toml: '{requirement}' should be name>=version, so that its oldest version is known."
        )
    return f"{found[1]}=={found[2]}"


if __name__ == "__main__":
    if "--tests" in sys.argv:
        print(*TESTS)
    elif sys.version_info[:2] != PYTHON:
        raise SystemExit("The bounds of pyproject.toml are those of Python 3.11: make test-lowest PYTHON=python3.11")
    else:
        print(*lowest(tomllib.loads(PYPROJECT.read_text())["project"]), sep="\n")
