"""How commands show numbers and tables."""

from collections.abc import Sequence


def aligned(rows: Sequence[tuple[str, ...]], *, right: Sequence[int] = ()) -> list[str]:
    """Columns as wide as they need to be; those in `right` end at the same place."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(_cells(row, widths, right)).rstrip() for row in rows]


def _cells(row: tuple[str, ...], widths: Sequence[int], right: Sequence[int]) -> list[str]:
    return [
        cell.rjust(width) if i in right else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def short(count: float) -> str:
    """134515008 as people say it: 134.5M."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return f"{count:g}"


def size(count: float) -> str:
    """Bytes: 1900000000 is 1.9 GB."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"
