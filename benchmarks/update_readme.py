"""Make the README's tables anew from the result files here: `python benchmarks/update_readme.py`."""

from __future__ import annotations

import re
from pathlib import Path

from kenyon.bench import BenchResult
from kenyon.cli.show import load_results
from kenyon.report.markdown import results_markdown
from kenyon.report.speed import speed_markdown

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
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


BLOCKS = {"demo": lambda: results("cpu"), "measured": lambda: results("h200"), "speed": speed}


def rendered(text: str) -> str:
    """The README with every marked block made from its results."""
    for name, make in BLOCKS.items():
        table = make()
        text = re.sub(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", rf"\1\n{table}\n\n\2", text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    README.write_text(rendered(README.read_text()))
