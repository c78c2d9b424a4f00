"""The map of the code in CONTRIBUTING.md, made from the code: `python website/code_map.py` updates it.

Parts are in the order of their imports: each uses only parts above it.
"""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "kenyon"
PAGE = ROOT / "CONTRIBUTING.md"


def parts() -> dict[str, Path]:
    """Return the package's folders and modules by name."""
    folders = {path.parent.name: path for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.stem: path for path in PACKAGE.glob("*.py") if not path.stem.startswith("__")}
    return folders | modules


def uses(path: Path) -> set[str]:
    """Return the parts that a part imports, at any level."""
    files = path.parent.rglob("*.py") if path.name == "__init__.py" else [path]
    found = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kenyon."):
                found.add((node.module or "").split(".")[1])
    return found


def code_map() -> str:
    places = parts()
    order = TopologicalSorter({name: uses(path) - {name} for name, path in sorted(places.items())})
    order.prepare()
    rows = ["| part | what it is |", "|---|---|"]
    while order.is_active():
        for name in sorted(order.get_ready()):
            path = places[name].parent if places[name].name == "__init__.py" else places[name]
            label = f"{name}/" if path.is_dir() else name
            words = (ast.get_docstring(ast.parse(places[name].read_text())) or "").split("\n\n")[0].replace("\n", " ")
            rows.append(f"| [`{label}`]({path.relative_to(ROOT).as_posix()}) | {words} |")
            order.done(name)
    return "\n".join(rows)


def rendered(text: str) -> str:
    return re.sub(r"(<!-- map -->\n).*?(<!-- /map -->)", rf"\1\n{code_map()}\n\n\2", text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
