"""Make the README's tables anew from the result files here: `python benchmarks/update_readme.py`."""

from __future__ import annotations

import re
from pathlib import Path

from kenyon.cli.show import load_results
from kenyon.report.markdown import results_markdown

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
BLOCKS = {"demo": HERE / "cpu", "measured": HERE / "h200"}


def rendered(text: str) -> str:
    """The README with every marked block made from its results."""
    for name, folder in BLOCKS.items():
        table = results_markdown(load_results(folder))
        text = re.sub(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", rf"\1\n{table}\n\n\2", text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    README.write_text(rendered(README.read_text()))
