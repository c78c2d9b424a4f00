"""A figure onto the disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kenyon.errors import ResultsError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_figure(figure: Figure, path: Path) -> Path:
    """As the path's suffix says (png, pdf, svg), and as SVG beside it; the figure is closed either way."""
    from matplotlib import pyplot as plt

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
        figure.savefig(path.with_suffix(".svg"))
    except (OSError, ValueError) as error:  # ValueError: a suffix that is no format
        raise ResultsError(f"Cannot write {path}: {getattr(error, 'strerror', None) or error}.") from error
    finally:
        plt.close(figure)
    return path
