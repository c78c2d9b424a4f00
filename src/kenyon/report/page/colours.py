"""Which colour and mark a method has, everywhere on a page.

Nine colours, each for a light and a dark page. Between any two of them the distance in Oklab is at least 0.08 for
people with red-, green- or blue-blindness, and their contrast with the page is at least 3 : 1 (tests measure both).
Beyond nine, colours come again with another mark; names stand beside the marks wherever there is room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# name: (on a light page, on a dark page)
PALETTE = {
    "red": ("#b6350c", "#ff7549"),
    "blue": ("#17497b", "#3584ce"),
    "gold": ("#b88414", "#eac472"),
    "green": ("#4a875f", "#46b67e"),
    "pink": ("#d851a5", "#f596bb"),
    "purple": ("#8e3eb7", "#c48ff6"),
    "sky": ("#2b94d1", "#72d9fc"),
    "brown": ("#582a00", "#ac6643"),
    "grey": ("#5e646b", "#81878f"),
}
PAPER = ("#fffdf9", "#15171b")
MARKS = ("circle", "square", "triangle", "diamond", "plus", "cross")
USUAL = {
    "finetune": "grey",
    "ewc": "blue",
    "mas": "green",
    "si": "purple",
    "ewc-af1": "sky",
    "mcl-ewc": "gold",
    "mcl-mas": "brown",
    "caf-ewc": "red",
    "caf-mas": "pink",
}


def styles(methods: Mapping[str, str], order: Sequence[str]) -> dict[str, list[str]]:
    """Label -> [colour, mark], for labels with their methods: a colour a method, and a mark a label within it.

    Methods take their usual colours first; the others get what is left, in the given order. Where all is of one
    method, colours tell its points apart.
    """
    if len(set(methods.values())) == 1:
        usual, n = USUAL.get(next(iter(methods.values()))), len(PALETTE)
        colours = sorted(PALETTE, key=lambda colour: colour != usual)  # its own first
        return {label: [colours[i % n], MARKS[i // n % len(MARKS)]] for i, label in enumerate(methods)}
    names = sorted(set(methods.values()), key=lambda m: (order.index(m) if m in order else len(order), m))
    taken: dict[str, str] = {m: USUAL[m] for m in names if m in USUAL}
    uses = dict.fromkeys(PALETTE, 0)
    for colour in taken.values():
        uses[colour] += 1
    rounds = dict.fromkeys(taken, 0)
    for method in names:
        if method not in taken:
            colour = min(PALETTE, key=lambda c: uses[c])
            taken[method], rounds[method] = colour, uses[colour]
            uses[colour] += 1
    found: dict[str, list[str]] = {}
    points = dict.fromkeys(names, 0)
    for label, method in methods.items():
        found[label] = [taken[method], MARKS[(rounds[method] + points[method]) % len(MARKS)]]
        points[method] += 1
    return found


def css_variables() -> str:
    """The palette as CSS custom properties, each for both schemes."""
    pairs = {**PALETTE, "paper": PAPER}
    return "".join(f"--{name}:light-dark({light},{dark});" for name, (light, dark) in pairs.items())
