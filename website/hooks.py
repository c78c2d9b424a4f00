"""The site's pages: those of docs/ in order, CONTRIBUTING, notebooks, the API, and files that pages link to.

Pages that do not exist are left out of the order; a page without a place comes last.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "kenyon"
ORDER = {
    "Start": ["index.md", "method.md", "running.md", "estimator.md"],
    "Your own": ["own-data.md", "own-backbone.md", "own-method.md", "inside-other-tools.md"],
    "Guides": ["games.md", "search.md", "scale.md", "analysis.md", "nothing-lost.md", "speed.md"],
    "The paper": ["results.md", "reproduction.md", "theory.md"],
}
# Parts of the reference, after those of `kenyon` itself.
REFERENCE = (
    *("estimator", "experiments", "sweep", "methods", "methods.importance", "methods.path_importance"),
    *("methods.penalties", "methods.mechanism", "regularizers", "models", "data", "training"),
    *("metrics", "report.page", "utils.views", "paper.analyses", "paper.theory", "paper.reproduce", "rl", "errors"),
)
PICTURES = (".png", ".svg")
LINK = re.compile(r"(!?\[(?:[^\]`]|`[^`]*`)*\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    there = {path.name for path in (ROOT / "docs").glob("*.md")}
    placed = {page for pages in ORDER.values() for page in pages}
    nav: list[Any] = [{title: [page for page in pages if page in there]} for title, pages in ORDER.items()]
    nav.append({"Notebooks": [name for name, _ in notebooks()]})
    nav.append({"API": [name for name, _ in api_pages()]})
    nav.append({"More": [*sorted(there - placed), "contributing.md"]})
    config.nav = [{title: pages} for part in nav for title, pages in part.items() if pages]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {**dict(notebooks()), **dict(api_pages()), "contributing.md": (ROOT / "CONTRIBUTING.md").read_text()}
    waiting = [(ROOT / "docs" / file.src_uri, file.content_string) for file in files if file.is_documentation_page()]
    waiting += [(place_of(name), text) for name, text in pages.items()]
    made: dict[str, str | bytes] = {**pages}
    while waiting:  # files outside docs/ that a page links to come along, and those that these link to
        page, text = waiting.pop()
        for target in links(text):
            path = (page.parent / target).resolve()
            if path.is_relative_to(ROOT / "docs") or not path.exists() or (name := copied(path)) in made:
                continue
            made[name] = path.read_bytes() if path.suffix in PICTURES else shown(path)
            if path.suffix == ".md":
                waiting.append((path, path.read_text()))
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links within the repository into links of the site."""
    here = page.file.src_uri
    place = place_of(here)

    def moved(found: re.Match[str]) -> str:
        path = (place.parent / found[2]).resolve()
        if "://" in found[2] or not path.exists() or not path.is_relative_to(ROOT):
            return found[0]
        docs = ROOT / "docs"
        target = path.relative_to(docs).as_posix() if path.is_relative_to(docs) else copied(path)
        link = posixpath.relpath(target, posixpath.dirname(here) or ".")
        dark = path.with_name(f"{path.stem}-dark{path.suffix}")
        if found[1].startswith("!") and dark.exists():  # one for either theme
            return f"{found[1]}{link}#only-light){found[1]}{posixpath.dirname(link)}/{dark.name}#only-dark)"
        return f"{found[1]}{link}{found[3]}"

    blocks = BLOCK.findall(markdown)
    parts = [LINK.sub(moved, part) for part in BLOCK.split(markdown)]
    return "".join(part + block for part, block in zip(parts, [*blocks, ""], strict=True))


def links(markdown: str) -> Iterator[str]:
    for _, target, _ in LINK.findall(BLOCK.sub("", markdown)):
        if "://" not in target:
            yield target


def place_of(name: str) -> Path:
    """Return the path of a page of the site in the repository."""
    if name == "contributing.md":
        return ROOT / "CONTRIBUTING.md"
    if name.startswith("repository/"):
        path = ROOT / name.removeprefix("repository/")
        return path if path.exists() else path.with_suffix("")
    return ROOT / "docs" / name


def copied(path: Path) -> str:
    """Return the page that shows a file or folder outside docs/; for a picture the picture itself."""
    if path == ROOT / "CONTRIBUTING.md":
        return "contributing.md"
    if path.suffix == ".ipynb":
        return f"notebooks/{path.stem}.md"
    inside = path.relative_to(ROOT).as_posix()
    return f"repository/{inside}" if path.suffix in (".md", *PICTURES) else f"repository/{inside}.md"


def shown(path: Path) -> str:
    """A page that is linked to, but left out of navigation and search."""
    name = path.relative_to(ROOT).as_posix()
    if path.suffix == ".md":
        body = path.read_text()
    elif path.is_dir():
        files = sorted(
            file.relative_to(path).as_posix() for file in path.rglob("*") if file.suffix not in ("", ".pyc")
        )
        body = f"# {name}\n\n```text\n" + "\n".join(files) + "\n```\n"
    else:
        language = {".py": "python", ".json": "json"}.get(path.suffix, "text")
        body = f"# {name}\n\n````{language}\n{path.read_text()}\n````\n"
    return f"---\nsearch:\n  exclude: true\n---\n\n{body}"


def notebooks() -> Iterator[tuple[str, str]]:
    """Turn every notebook into a page: its text, its code, and its output."""
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        parts = []
        for cell in json.loads(path.read_text())["cells"]:
            text = "".join(cell["source"])
            parts += [text] if cell["cell_type"] == "markdown" else [f"```python\n{text}\n```"]
            parts += [_output(one) for one in cell.get("outputs", [])]
        parts.append(f"The notebook itself is `examples/{path.name}`.")
        yield f"notebooks/{path.stem}.md", "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return (
            f'<img alt="what the code above draws" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
        )
    return "```text\n" + "".join(output.get("text", data.get("text/plain", ""))).rstrip() + "\n```"


def api_pages() -> Iterator[tuple[str, str]]:
    first = homes()
    functions_first = sorted(first, key=lambda name: (name[0].isupper(), name))
    entries = [_entry(f"{first[name]}.{name}", f"kenyon.{name}") for name in functions_first]
    words = ast.get_docstring(ast.parse((PACKAGE / "__init__.py").read_text())) or ""
    yield "api/kenyon.md", "\n\n".join(["# kenyon", words, *entries]) + "\n"
    shown_first = {f"{home}.{name}" for name, home in first.items()}
    for part in PARTS:
        yield f"api/{part}.md", _part(part, shown_first)


def homes() -> dict[str, str]:
    """Return the modules that define the names of `kenyon`, without importing them."""
    return dict(_value(ast.parse((PACKAGE / "__init__.py").read_text()), "_HOMES") or {})


def offered(part: str) -> list[str]:
    """Return a part's __all__ without modules; its public classes and functions if it has none."""
    source = ast.parse(_path(part).read_text())
    names = _value(source, "__all__") or [
        node.name for node in source.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name[0] != "_"
    ]
    modules = {path.stem for path in _path(part).parent.glob("*")} if _path(part).name == "__init__.py" else set()
    return [name for name in names if name not in modules]


def _part(part: str, shown_first: set[str]) -> str:
    names = {name: f"kenyon.{part}.{name}" for name in offered(part)}
    here = [_entry(path) for path in names.values() if path not in shown_first]
    there = [f"[`{name}`](kenyon.md)" for name, path in names.items() if path in shown_first]
    also = [f"Also here: {', '.join(there)}."] if there else []
    summary = ast.get_docstring(ast.parse(_path(part).read_text())) or ""
    return "\n\n".join([f"# kenyon.{part}", summary, *also, *here]) + "\n"


def _path(part: str) -> Path:
    folder = PACKAGE.joinpath(*part.split("."))
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


PARTS = [part for part in REFERENCE if _path(part).is_file()]


def _value(source: ast.Module, name: str) -> Any:
    """Return the literal that a module assigns to a name, or None, without importing it."""
    for node in source.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    return None


def _entry(path: str, heading: str | None = None) -> str:
    return f"::: {path}" + (f"\n    options: {{heading: {heading}, toc_label: {heading}}}" if heading else "")
