"""The pieces of a map that blocks of threads compute one at a time, and which part of it they cover."""

from __future__ import annotations

from dataclasses import dataclass

Lines = tuple[int, int] | None  # the first row and column of the output that counts, and how many do; None: all


@dataclass(frozen=True)
class Tiles:
    """Of maps with equal sides. What lies outside of all tiles does not count."""

    map: int
    rows: int  # of a tile
    wide: int  # its columns
    images: int  # that it has a part of, at the same place in each
    top: int  # row at which tiles begin
    down: int  # how many there are below one another
    left: int  # column at which they begin
    across: int  # how many there are beside one another

    @property
    def pixels(self) -> int:
        return self.images * self.rows * self.wide

    def bordered(self, border: int) -> int:
        """Pixels of a tile with so many rows and columns more."""
        return self.images * (self.rows + border) * (self.wide + border)

    def count(self, batch: int) -> int:
        return -(-batch // self.images) * self.down * self.across

    @property
    def share(self) -> float:
        """Of a map's pixels, those in tiles."""
        return self.down * self.rows * self.across * self.wide / self.map**2

    @property
    def macros(self) -> dict[str, int]:
        """Where all rows, or all columns in one tile, are covered, the kernels need not be told."""
        macros = {"ROWS": self.rows, "IMAGES": self.images}
        if self.down * self.rows < self.map:
            macros |= {"TOP": self.top, "TILES_DOWN": self.down}
        if self.wide < self.map:
            macros |= {"WIDE": self.wide, "LEFT": self.left, "TILES_ACROSS": self.across}
        return macros


def tiles_of(map: int, rows: int, wide: int, images: int, lines: Lines) -> Tiles | None:
    """Tiles that cover what counts; None where so large ones would lie outside the map."""
    top, down = _along(map, rows, lines)
    left, across = _along(map, wide, lines)
    if min(top, left) < 0:
        return None
    return Tiles(map, rows, wide, images, top, down, left, across)


def _along(map: int, size: int, lines: Lines) -> tuple[int, int]:
    """Where tiles of this size begin, at an even row or column, and how many there are."""
    first, count = lines or (0, map)
    number = -(-(first % 2 + count) // size)
    return min(first // 2 * 2, map - number * size), number


def covered(map: int, lines: Lines) -> int:
    """The side of the part that tiles have to cover, in whole blocks of 8 pixels, with which the kernels compute."""
    return 8 * _along(map, 8, lines)[1] if map % 8 == 0 else map


def tile_of(pixels: int, side: int) -> tuple[int, int]:
    """(rows, images) of a tile of about so many pixels, as wide as a square part of an image."""
    if pixels > side * side:
        return side, pixels // (side * side)
    return (1 << (pixels // side).bit_length()) >> 1, 1  # a power of two, or 0: such numbers of rows make up a map
