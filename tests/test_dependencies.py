"""Dependencies point one way and never in a circle."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import kenyon

ROOT = Path(kenyon.__file__).parent

# What each package, or module beside the packages, may import of the others.
BASE = {"version", "errors", "utils", "random", "metrics"}
NUMBERS = BASE | {"backends", "models", "methods"}
TRAINING = NUMBERS | {"data", "training"}
BENCHMARKS = TRAINING | {"datasets", "integrations", "benchmarks"}
EXPERIMENTS = BENCHMARKS | {"rl", "experiments"}
ALLOWED: dict[str, set[str]] = {
    "version": set(),
    "renamed": set(),
    "errors": set(),
    "utils": {"errors"},
    "random": {"utils"},
    "metrics": {"errors"},
    "datasets": BASE,
    "data": BASE | {"datasets"},
    "backends": BASE,
    "models": BASE | {"backends"},
    "methods": BASE | {"backends", "models"},
    "regularizers": NUMBERS,
    "integrations": NUMBERS | {"regularizers"},
    "training": NUMBERS | {"data"},
    "benchmarks": TRAINING | {"datasets"},
    "rl": TRAINING | {"benchmarks"},
    "experiments": BENCHMARKS | {"rl"},
    "estimator": TRAINING,
    "bench": EXPERIMENTS,
    "sweep": EXPERIMENTS,
    "report": EXPERIMENTS | {"bench"},
    "paper": EXPERIMENTS | {"report"},
    "cli": EXPERIMENTS | {"bench", "sweep", "report", "paper"},
    "__main__": {"cli"},
    # The package itself may offer everything, so nothing may import the package itself.
    "": EXPERIMENTS | {"renamed", "estimator", "report"},
}


def module_name(path: Path) -> str:
    parts = ["kenyon", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def imports(name: str) -> set[str]:
    """The modules of Kenyon that a module imports, wherever in it; `from package import name` counts as both."""
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            submodules = {f"{base}.{alias.name}" for alias in node.names}
            inside = submodules & set(MODULES)
            found |= inside or {base}
    return {module for module in found if module.split(".")[0] == "kenyon"}


def part(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def test_every_part_has_its_place() -> None:
    assert {part(name) for name in MODULES} <= set(ALLOWED)


@pytest.mark.parametrize("name", MODULES)
def test_dependencies_point_one_way(name: str) -> None:
    for other in imports(name):
        assert other in MODULES, f"{name} imports {other}, which is not a module"
        if part(other) != part(name):
            assert part(other) in ALLOWED[part(name)], f"{name} must not import {other}"


def test_there_are_no_circles() -> None:
    """Module by module. A package's __init__ gathers its own modules; inside a package they never go through it."""
    graph = {name: imports(name) - {name} for name in MODULES}
    list(TopologicalSorter(graph).static_order())  # raises CycleError with the circle


def test_the_order_of_the_parts_is_one() -> None:
    list(TopologicalSorter(ALLOWED).static_order())
