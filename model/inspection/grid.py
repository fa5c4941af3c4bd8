"""All layers and heads at a glance: a small map for each, a row of maps per layer.

Cells of one shade are one path, in 20 steps, so that hundreds of maps stay a small file.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfm.model.inspection.capture import Floats
from tfm.model.inspection.labels import piece_labels
from tfm.model.inspection.svg import Drawing, number, text_width, wrap

SIDE = 190  # pixels of a map's longer side
GAP = 14
MARGIN = 28
LEGIBLE = 7.5  # pixels a row needs for its label
LONGEST = 64  # rows or columns of a map; longer ones are pooled
STEPS = 20


class Layout(NamedTuple):
    """Where the maps are: the size of a cell and of a map, and the corner of the first map."""

    cell: float
    width: float
    height: float
    left: float
    top: float

    def corner(self, layer: int, head: int) -> tuple[float, float]:
        """Return the upper left corner of a map."""
        return self.left + head * (self.width + GAP), self.top + layer * (self.height + GAP)


def grid(
    maps: Floats, rows: Sequence[str], columns: Sequence[str], *, title: str, caption: str
) -> str:
    """Draw maps [layer, head, row, column] of shares from 0 to 1 as SVG.

    Pieces label the rows and columns where there is room. Maps of more than 64 rows or columns are
    reduced by taking the largest of neighbouring cells, and the caption says so.
    """
    layers, heads, R, C = maps.shape
    if max(R, C) > LONGEST:
        caption += (
            f" Each map of {R} x {C} is reduced to at most {LONGEST} cells a side by taking the "
            "largest of neighbouring ones; attention.npz has all."
        )
    small = pool(maps, LONGEST)
    cell = SIDE / max(small.shape[-2:])
    labelled = cell >= LEGIBLE and small.shape == maps.shape
    row_labels, column_labels = (piece_labels(x) if labelled else [] for x in (rows, columns))
    size = min(11.0, cell * 0.82)
    deep = max((text_width(x, size) for x in column_labels), default=0) + 8
    left = MARGIN + 24 + max((text_width(x, size) for x in row_labels), default=0)
    height, width = (n * cell for n in small.shape[-2:])
    page = max(left + heads * (width + GAP) - GAP + MARGIN, 480)
    lines = wrap(caption, page - 2 * MARGIN)
    layout = Layout(cell, width, height, left, 92 + 18 * len(lines))
    bottom = layout.corner(layers, 0)[1] - GAP + deep
    drawing = Drawing(page, bottom + 64, title=title, description=caption)
    drawing.text(MARGIN, 44, title, "title")
    for i, line in enumerate(lines):
        drawing.text(MARGIN, 68 + 18 * i, line, "quiet")
    _draw_labels(drawing, layout, layers, heads)
    _draw_pieces(drawing, layout, layers, heads, row_labels, column_labels, size)
    for layer in range(layers):
        for head in range(heads):
            x, y = layout.corner(layer, head)
            name = f"layer {layer + 1}, head {head + 1}"
            drawing.raw(_panel(small[layer, head], x, y, layout, name))
    drawing.scale(layout.left, bottom + 18)
    return drawing.render()


def pool(maps: Floats, longest: int) -> Floats:
    """Reduce the last two axes to at most `longest` by the largest of neighbouring cells."""
    for axis in (-2, -1):
        length = maps.shape[axis]
        if length > longest:
            starts = np.arange(longest) * length // longest
            maps = np.maximum.reduceat(maps, starts, axis=axis)
    return maps


def _draw_labels(drawing: Drawing, layout: Layout, layers: int, heads: int) -> None:
    for head in range(heads):
        x, y = layout.corner(0, head)
        drawing.text(x + layout.width / 2, y - 9, f"head {head + 1}", "small middle")
    for layer in range(layers):
        y = layout.corner(layer, 0)[1] + layout.height / 2
        drawing.text(MARGIN + 8, y, f"layer {layer + 1}", "small middle", turn=-90)


def _draw_pieces(
    drawing: Drawing,
    layout: Layout,
    layers: int,
    heads: int,
    rows: Sequence[str],
    columns: Sequence[str],
    size: float,
) -> None:
    """Label the rows left of the first map of each layer and the columns under the last layer."""
    for layer in range(layers):
        x, y = layout.corner(layer, 0)
        for i, label in enumerate(rows):
            middle = y + (i + 0.5) * layout.cell + size * 0.35
            drawing.text(x - 5, middle, label, "small end", size=size)
    for head in range(heads):
        x, y = layout.corner(layers - 1, head)
        for j, label in enumerate(columns):
            middle = x + (j + 0.5) * layout.cell + size * 0.35
            drawing.text(middle, y + layout.height + 5, label, "small end", turn=-90, size=size)


def _panel(weights: Floats, x: float, y: float, layout: Layout, name: str) -> str:
    """Return one map as a group; runs of cells of the same shade share a rectangle."""
    box = f'x="{number(x)}" y="{number(y)}"'
    size = f'width="{number(layout.width)}" height="{number(layout.height)}"'
    parts = [f'<g><title>{name}</title><rect class="empty" {box} {size} rx="3"/>']
    levels = np.rint(weights * STEPS).astype(int)
    for level in range(1, levels.max(initial=0) + 1):
        if path := _runs(levels == level, x, y, layout.cell):
            parts.append(f'<path class="ink" fill-opacity="{number(level / STEPS)}" d="{path}"/>')
    return "".join([*parts, "</g>"])


def _runs(
    mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], x: float, y: float, cell: float
) -> str:
    parts = []
    for i, row in enumerate(mask):
        edges = np.flatnonzero(np.diff(row.astype(np.int8), prepend=0, append=0))
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            corner = f"M{number(x + start * cell)} {number(y + i * cell)}"
            width = number((end - start) * cell)
            parts.append(f"{corner}h{width}v{number(cell)}h-{width}z")
    return "".join(parts)
