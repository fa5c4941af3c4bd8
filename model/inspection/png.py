"""The pictures of a report as PNG, drawn by matplotlib, which is asked for only here."""

import io
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tfm.data.errors import UserError
from tfm.model.inspection.grid import LONGEST, pool
from tfm.model.inspection.labels import piece_labels, shorten
from tfm.model.inspection.svg import wrap
from tfm.model.inspection.views import View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELL, SMALL = 0.5, 2.2  # inches: a cell of a large map, a small map
LEGIBLE = 24  # labels that a small map has room for


def png(view: View) -> bytes:
    """Draw `view`: one map large, or many small.

    Raises:
        UserError: where matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401  # asked for here, so that the message comes first
    except ImportError:
        raise UserError("PNG pictures need matplotlib: pip install matplotlib") from None
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # A character that no installed font has is drawn as a box; there is nothing to act on.
        warnings.filterwarnings("ignore", message="Glyph")
        figure = _large(view) if view.weights.ndim == 2 else _small(view)
        figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()


def _large(view: View) -> "Figure":
    from matplotlib.figure import Figure

    R, C = view.weights.shape
    figure = Figure(figsize=(max(C * CELL + 1.5, 5), R * CELL + 2.5), layout="constrained")
    axes = figure.subplots()
    axes.imshow(view.weights, vmin=0, vmax=1, cmap="Blues")
    _label(axes, [shorten(x, 18) for x in view.rows], [shorten(x, 18) for x in view.columns])
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    for label in axes.get_xticklabels():
        label.set(rotation=38, ha="left", rotation_mode="anchor")
    for (i, j), value in [((i, j), view.weights[i, j]) for i in range(R) for j in range(C)]:
        if value >= 0.05:
            colour = "white" if value > 0.55 else "black"
            axes.text(j, i, f"{100 * value:.0f}", ha="center", va="center", color=colour, size=8)
    _caption(figure, view)
    return figure


def _small(view: View) -> "Figure":
    from matplotlib.figure import Figure

    layers, heads, R, C = view.weights.shape
    figure = Figure(figsize=(heads * SMALL + 1, layers * SMALL + 1), layout="constrained")
    grid: Any = figure.subplots(layers, heads, squeeze=False)
    maps = pool(view.weights, LONGEST)
    for layer in range(layers):
        for head in range(heads):
            axes = grid[layer, head]
            axes.imshow(maps[layer, head], vmin=0, vmax=1, cmap="Blues", aspect="auto")
            labelled = max(R, C) <= LEGIBLE
            rows = piece_labels(view.rows) if labelled and head == 0 else []
            columns = piece_labels(view.columns) if labelled and layer == layers - 1 else []
            _label(axes, rows, columns)
            axes.tick_params(length=0, labelsize=6)
            axes.tick_params(axis="x", labelrotation=90)
            axes.set_title(f"layer {layer + 1}, head {head + 1}", size=7, pad=3)
    _caption(figure, view)
    return figure


def _label(axes: Any, rows: Sequence[str], columns: Sequence[str]) -> None:
    axes.set_xticks(range(len(columns)), columns, parse_math=False)
    axes.set_yticks(range(len(rows)), rows, parse_math=False)


def _caption(figure: "Figure", view: View) -> None:
    lines = wrap(view.caption, 72 * figure.get_figwidth(), 9)
    text = "\n".join([view.title, *lines])
    figure.suptitle(text, size=9, parse_math=False)
