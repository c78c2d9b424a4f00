"""Make the tables of the README and of pages of docs/ anew: `python benchmarks/update_readme.py`."""

from __future__ import annotations

import re
from pathlib import Path

from kenyon.bench import BenchResult
from kenyon.cli.show import load_results
from kenyon.report.markdown import overview_markdown, results_markdown
from kenyon.report.speed import speed_markdown

HERE = Path(__file__).parent
PAGES = (HERE.parent / "README.md", HERE.parent / "docs" / "index.md", HERE.parent / "docs" / "results.md")
SPEED = ("bench-h200", "bench-cpu")  # JSON files of `kenyon bench`, with their pictures; those that are there


def results(folder: str) -> str:
    return results_markdown(load_results(HERE / folder))


def speed() -> str:
    parts = []
    for name in SPEED:
        if (HERE / f"{name}.json").exists():
            parts.append(speed_markdown(BenchResult.load(HERE / f"{name}.json")))
            if (HERE / f"{name}.png").exists():
                parts.append(f"![{name}](benchmarks/{name}.png)")
    return "\n\n".join(parts)


def overview() -> str:
    return overview_markdown(load_results(HERE / "h200"))


BLOCKS = {
    "demo": lambda: results("cpu"),
    "overview": overview,
    "measured": lambda: results("h200"),
    "speed": speed,
}


def rendered(text: str) -> str:
    """A page with every marked block made from its results."""
    for name, make in BLOCKS.items():
        if f"<!-- {name} -->" not in text:
            continue
        table = make()
        text = re.sub(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", rf"\1\n{table}\n\n\2", text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rendered(page.read_text()))
