"""Dependencies point one way and never in a circle."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import kenyon

ROOT = Path(kenyon.__file__).parent

# What each part of the library may import of the others, besides itself.
BASE = {
    "errors",
    "machine",
    "files",
    "formats",
    "clock",
    "words",
    "version",
    "kernels",
    "hashing",
    "random",
    "passes",
    "factors",
    "forces",
    "pieces",
    "losses",
    "optimiser",
    "threads",
    "steady",
    "products",
    "strengths",
    "user_files",
    "checksums",
}
DATA = BASE | {"data", "streams"}
PARTS = {
    "nets",
    "importance",
    "hooks",
    "tracked",
    "stages",
    "replay",
    "predictions",
    "penalties",
    "mechanisms",
}  # that methods are made of
ALLOWED = {
    "errors": set(),
    "machine": set(),
    "files": {"errors", "machine"},
    "formats": {"errors"},
    "clock": set(),
    "words": set(),
    "version": set(),
    "products": set(),
    "kernels": set(),
    "hashing": {"kernels"},
    "random": {"hashing"},
    "passes": {"kernels", "steady"},
    "factors": {"kernels", "passes", "forces"},
    "forces": set(),
    "pieces": {"threads"},
    "losses": {"kernels", "steady"},
    "optimiser": {"passes", "factors", "forces", "pieces", "steady"},
    "threads": set(),
    "steady": set(),
    "metrics": {"errors"},
    "views": {"errors"},
    "data": BASE,
    "streams": BASE | {"data"},
    "nets": BASE,
    "importance": BASE | {"nets"},
    "hooks": BASE | {"nets", "importance"},
    "tracked": BASE | {"nets", "importance", "hooks"},
    "stages": BASE | {"nets", "importance"},
    "strengths": {"errors"},
    "user_files": {"errors"},
    "checksums": {"errors", "files"},
    "replay": {"errors"},
    "predictions": BASE | {"nets"},
    "penalties": BASE | {"nets", "predictions"},
    "mechanisms": BASE | PARTS - {"mechanisms"},
    "methods": BASE | PARTS,
    "logs": {"errors", "files"},
    "tools": BASE | PARTS,
    "train": DATA | PARTS | {"methods", "metrics"},
    "integrity": DATA | {"experiments", "rl"},
    "experiments": DATA | PARTS | {"methods", "metrics", "train", "logs"},
    "analysis": DATA | PARTS | {"methods", "metrics", "train", "experiments", "views"},
    "rl": DATA | PARTS | {"methods", "metrics", "train", "experiments", "views"},
    "estimator": DATA | PARTS | {"methods", "metrics", "train"},
    "bench": DATA | PARTS | {"methods", "metrics", "train", "experiments"},
    "sweep": DATA | {"methods", "metrics", "train", "experiments", "rl"},
    "theory": {"errors"},
    "report": BASE | {"methods", "metrics", "train", "experiments", "rl", "bench", "theory", "views"},
    "reproduce": DATA | {"metrics", "train", "experiments", "analysis", "rl", "theory", "views", "report"},
    "cli": DATA
    | {"methods", "metrics", "train", "experiments", "analysis", "rl", "bench", "sweep"}
    | {"views", "report", "reproduce", "integrity"},
    "__main__": {"cli"},
    # The package itself may offer everything, so nothing may import the package itself.
    "": DATA
    | PARTS
    | {"methods", "metrics", "train", "experiments", "estimator", "analysis", "report", "reproduce"}
    | {"integrity"},
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
