"""Colors that are distinct for all readers, on a light and on a dark page."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest

from kenyon.methods import METHODS
from kenyon.report.page import document as colours
from kenyon.report.page.document import MARKS, PALETTE, PAPER, styles

CSS = (Path(colours.__file__).parent / "page.css").read_text()

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
SEEN = {
    "all": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(colour: str) -> np.ndarray:
    v = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(v <= 0.04045, v / 12.92, ((v + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """WCAG 2: (lighter + 0.05) / (darker + 0.05) of relative luminance."""
    a, b = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
    return (b + 0.05) / (a + 0.05)


def oklab(rgb: np.ndarray) -> np.ndarray:
    lms = np.cbrt(
        np.clip(
            np.array(
                [
                    [0.4122214708, 0.5363325363, 0.0514459929],
                    [0.2119034982, 0.6806995451, 0.1073969566],
                    [0.0883024619, 0.2817188376, 0.6299787005],
                ]
            )
            @ rgb,
            0,
            None,
        )
    )
    return (
        np.array(
            [
                [0.2104542553, 0.7936177850, -0.0040720468],
                [1.9779984951, -2.4285922050, 0.4505937099],
                [0.0259040371, 0.7827717662, -0.8086757660],
            ]
        )
        @ lms
    )


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_marks_stand_out_and_differ_for_everybody(scheme: int) -> None:
    shades = {name: pair[scheme] for name, pair in PALETTE.items()}
    assert min(contrast(shade, PAPER[scheme]) for shade in shades.values()) >= 3  # graphics
    for matrix, (one, other) in product(SEEN.values(), combinations(shades, 2)):
        a, b = (oklab(np.clip(np.array(matrix) @ linear(shades[name]), 0, 1)) for name in (one, other))
        assert np.linalg.norm(a - b) >= 0.075, (one, other)


def declared(name: str) -> tuple[str, str]:
    light, dark = CSS.split(f"--{name}: light-dark(")[1].split(")")[0].split(",")
    return light.strip(), dark.strip()


@pytest.mark.parametrize("name", ["ink", "muted", "link"])
@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_is_legible(name: str, scheme: int) -> None:
    for ground in (PAPER[scheme], declared("raised")[scheme]):
        assert contrast(declared(name)[scheme], ground) >= 4.5


def test_a_method_has_one_colour_and_a_label_one_look() -> None:
    labels = {f"{m}[{v}]" if v else m: m for m, v in product(METHODS, ("", "a", "b"))}
    looks = styles(labels)
    for method in METHODS:
        assert len({looks[label][0] for label, of in labels.items() if of == method}) == 1
    alone = styles({m: m for m in METHODS})
    assert len({tuple(look) for look in alone.values()}) == len(METHODS)
    nine = ["finetune", "si", "mas", "ewc", "ewc-af1", "mcl-mas", "mcl-ewc", "caf-mas", "caf-ewc"]
    assert len({look[0] for look in styles({m: m for m in nine}).values()}) == 9
    assert all(colour in PALETTE and mark in MARKS for colour, mark in looks.values())


def test_points_of_one_method_alone_differ_in_colour() -> None:
    looks = styles({f"ewc[{v}]": "ewc" for v in range(40)})
    assert len({look[0] for look in list(looks.values())[:9]}) == 9
    assert len({tuple(look) for look in looks.values()}) == 40
    assert styles({"ewc": "ewc"}) == {"ewc": ["blue", "circle"]}  # as everywhere
