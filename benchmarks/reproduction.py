"""Draw the paper's figures from the saved runs of this folder, and list its claims.

    python benchmarks/reproduction.py

Nothing is trained. Data and tables go to benchmarks/reproduction, pictures to docs/pictures/reproduction, and the
claims, with the evidence for or against each, into docs/reproduction.md.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kenyon.paper.reproduce import REPRODUCTIONS, SCALES, reproduce
from kenyon.paper.reproduce.page import claims_page

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
TWO = ("r-cifar-100", "s-cifar-100")
FAMILY = (*TWO, "r-cifar-10-100")


@dataclass(frozen=True)
class Drawn:
    """A figure: the folder of its runs, the number of runs of a variant, and its benchmarks."""

    name: str
    runs: str = "h200"
    seeds: int = 3
    benchmarks: tuple[str, ...] = FAMILY


FIGURES = (
    Drawn("fig2c", benchmarks=TWO),
    Drawn("fig2d", "h200-fig4", 1, TWO),
    Drawn("fig3b", seeds=1),
    Drawn("fig3d"),
    Drawn("fig3e"),
    Drawn("fig3f"),
    *(Drawn(name, "h200-fig4", benchmarks=TWO) for name in ("fig4abc", "fig4def", "fig4ghi")),
    Drawn("fig5", seeds=1, benchmarks=(*FAMILY, "omniglot", "cub-200", "tiny-imagenet")),
    Drawn("table5"),
    Drawn("s1", benchmarks=TWO),
    *(Drawn(name, seeds=1) for name in ("s2", "s3")),
    Drawn("s4", benchmarks=TWO),
    Drawn("s6"),
    Drawn("s7", benchmarks=TWO),
)


def draw(data: Path, pictures: Path) -> None:
    for folder in (data, pictures):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for figure in FIGURES:
        with tempfile.TemporaryDirectory() as place:
            out = shutil.copytree(HERE / figure.runs, Path(place) / "results")
            has = {one.benchmark for one in REPRODUCTIONS[figure.name].wanted(SCALES["paper"])}
            only = [b for b in figure.benchmarks if b in has] or None
            (written,) = reproduce(
                figure.name, scale="paper", benchmarks=only, seeds=figure.seeds, out=out, train=False
            )
            for path in (written.data, written.table):
                shutil.copy(path, data)
            shutil.copy(next(path for path in written.pictures if path.suffix == ".png"), pictures)


def rendered(text: str) -> str:
    """Return the page with all claims of the existing figures."""
    claims = claims_page(HERE / "reproduction", "pictures/reproduction")
    marked = r"(<!-- claims -->\n).*?(<!-- /claims -->)"
    return re.sub(marked, lambda found: f"{found[1]}\n{claims}\n\n{found[2]}", text, flags=re.DOTALL)


if __name__ == "__main__":
    draw(HERE / "reproduction", DOCS / "pictures" / "reproduction")
    page = DOCS / "reproduction.md"
    page.write_text(rendered(page.read_text()))
