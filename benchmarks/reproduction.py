"""Draw the paper's figures from the runs that are kept here, and list its claims.

    python benchmarks/reproduction.py

Nothing is trained. Data and tables go to benchmarks/reproduction, pictures to docs/pictures/reproduction, and the
claims, with the evidence for or against each, into docs/reproduction.md.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from kenyon.reproduce import REPRODUCTIONS, SCALES, reproduce
from kenyon.reproduce.page import claims_page

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
BENCHMARKS = ["r-cifar-100", "s-cifar-100"]
# Where runs lie -> figures -> how many runs of a variant there are at least.
FIGURES = {
    "h200": {
        **dict.fromkeys(("fig2c", "fig3d", "fig3e", "fig3f", "fig5", "table5", "s1", "s7"), 3),
        "fig3b": 1,
        "s2": 1,
    },
    "h200-fig4": {"fig4abc": 3, "fig4def": 3, "fig4ghi": 3},
}

MISSING = {"s1": "r-cifar-100"}  # where MAS with AF-2 has not been trained in its published form


def draw(data: Path, pictures: Path) -> None:
    for folder in (data, pictures):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for runs, figures in FIGURES.items():
        with tempfile.TemporaryDirectory() as place:
            out = shutil.copytree(HERE / runs, Path(place) / "results")
            for name, seeds in figures.items():
                has = {one.benchmark for one in REPRODUCTIONS[name].wanted(SCALES["paper"])}
                only = [b for b in BENCHMARKS if b in has and MISSING.get(name) != b] or None
                (written,) = reproduce(name, scale="paper", benchmarks=only, seeds=seeds, out=out, train=False)
                for path in (written.data, written.table):
                    shutil.copy(path, data)
                shutil.copy(next(path for path in written.pictures if path.suffix == ".png"), pictures)


def rendered(text: str) -> str:
    """The page with all claims of the figures that are here."""
    claims = claims_page(HERE / "reproduction", "pictures/reproduction")
    marked = r"(<!-- claims -->\n).*?(<!-- /claims -->)"
    return re.sub(marked, lambda found: f"{found[1]}\n{claims}\n\n{found[2]}", text, flags=re.DOTALL)


if __name__ == "__main__":
    draw(HERE / "reproduction", DOCS / "pictures" / "reproduction")
    page = DOCS / "reproduction.md"
    page.write_text(rendered(page.read_text()))
