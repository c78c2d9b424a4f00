"""A figure onto the disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kenyon.errors import ResultsError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_figure(
    figure: Figure,
    path: Path,
    suffixes: Sequence[str] = (".svg",),
    *,
    kept: str = "The numbers themselves are saved.",
) -> Path:
    """As the path's suffix says (png, pdf, svg), and with these beside it; the figure is closed either way.

    `kept`: what an error says is not lost with the picture.
    """
    from matplotlib import pyplot as plt

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for suffix in dict.fromkeys((path.suffix, *suffixes)):
            figure.savefig(path.with_suffix(suffix), dpi=150)
    except (OSError, ValueError) as error:  # ValueError: a suffix that is no format
        reason = getattr(error, "strerror", None) or error
        raise ResultsError(f"Cannot write {path}: {reason}. {kept}") from error
    finally:
        plt.close(figure)
    return path
