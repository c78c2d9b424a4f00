"""A figure onto the disk."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kenyon.errors import ResultsError
from kenyon.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_figure(
    figure: Figure,
    path: Path,
    suffixes: Sequence[str] = (".svg",),
    *,
    kept: str = "The numbers themselves are saved.",
) -> Path:
    """As the path's suffix says (png, pdf, svg), and with these beside it; the figure is closed either way. Each is
    there whole or not at all.

    `kept`: what an error says is not lost with the picture.
    """
    from matplotlib import pyplot as plt

    try:
        for suffix in dict.fromkeys((path.suffix, *suffixes)):
            drawn = io.BytesIO()
            figure.savefig(drawn, format=suffix.removeprefix(".") or None, dpi=150)
            write_atomically(path.with_suffix(suffix), drawn.getvalue())
    except (ResultsError, ValueError) as error:  # ValueError: a suffix that is no format
        reason = getattr(error.__cause__, "strerror", None) or error
        raise ResultsError(f"Cannot write {path}: {reason}. {kept}") from error
    finally:
        plt.close(figure)
    return path
