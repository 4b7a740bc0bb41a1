"""A table as lines: columns two spaces apart without rules, as kubectl and systemctl print them, fitted to a width."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

_GAP = 2
_NARROWEST = 19  # as wide as a date and time
_CUT = "…"


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Cells with their headings.

    Attributes:
        headers: one a column.
        cells: rows of as many texts, in one line each.
        right: whether a column is aligned right.
    """

    headers: Sequence[str]
    cells: Sequence[Sequence[str]]
    right: Sequence[bool]

    def lines(self, width: int | None = None) -> tuple[Iterator[str], Sequence[str]]:
        """Return the lines, headings first, and the headings of the columns that `width` has no room for.

        Wide columns are cut first, the widest most, as far as that helps; then the last columns are left out. The
        first one never is. Without a width every cell is whole.
        """
        widths = [max(map(cell_len, texts)) for texts in zip(self.headers, *self.cells, strict=True)]
        shown = len(widths)
        if width is not None:
            while shown > 1 and _total([min(one, _NARROWEST) for one in widths[:shown]]) > width:
                shown -= 1
            widths = _narrowed(widths[:shown], width)
        return self._lines(widths), self.headers[shown:]

    def _lines(self, widths: Sequence[int]) -> Iterator[str]:
        for line in (self.headers, *self.cells):
            # A row may have more cells than are shown.
            placed = [_placed(*cell) for cell in zip(line, widths, self.right, strict=False)]
            yield (" " * _GAP).join(placed).rstrip()


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _narrowed(widths: Sequence[int], width: int) -> list[int]:
    """Return the widths with the widest columns cut to one size, so that all fit."""
    cap = max(widths)
    while cap > _NARROWEST and _total([min(one, cap) for one in widths]) > width:
        cap -= 1
    return [min(one, cap) for one in widths]


def _placed(text: str, width: int, right: bool) -> str:
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, max(0, width - 1)) + _CUT
    return " " * (width - size) + text if right else text + " " * (width - size)
