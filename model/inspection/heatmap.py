"""One attention map, large enough to read: a number in each cell, a word at each row and column."""

from collections.abc import Sequence

from tfm.model.inspection.capture import Floats
from tfm.model.inspection.labels import shorten
from tfm.model.inspection.sentence import END
from tfm.model.inspection.svg import Drawing, text_width, wrap

WIDTH, HEIGHT, GAP = 46, 34, 3  # of a cell, and between cells
MARGIN = 28
LONGEST = 48  # words a side; what is beyond is left to the npz file, and the drawing says so
LABEL = 18  # terminal cells of the longest label
SLOPE = 38  # degrees by which column labels rise
DARK = 0.55  # from this share on, the number is written in the page's colour
SHOWN = 0.05  # shares below this are drawn, but not written


def heatmap(
    weights: Floats, rows: Sequence[str], columns: Sequence[str], *, title: str, caption: str
) -> str:
    """Draw rows x columns of shares from 0 to 1 as SVG; labels that are `END` are set apart."""
    caption += _cut(rows, "rows") + _cut(columns, "columns")
    weights, rows, columns = weights[:LONGEST, :LONGEST], rows[:LONGEST], columns[:LONGEST]
    labels = [shorten(column, LABEL) for column in columns]
    left = MARGIN + max(text_width(shorten(row, LABEL)) for row in rows) + 12
    grid = len(columns) * (WIDTH + GAP)
    overhang = max(
        text_width(label) * 0.79 - (len(labels) - i - 0.5) * (WIDTH + GAP)
        for i, label in enumerate(labels)
    )
    width = max(left + grid + max(overhang, 0) + MARGIN, 540)
    lines = wrap(caption, width - 2 * MARGIN)
    top = 62 + 18 * len(lines) + max(text_width(label) for label in labels) * 0.62 + 34
    bottom = top + len(rows) * (HEIGHT + GAP)
    drawing = Drawing(width, bottom + 66, title=title, description=caption)
    drawing.text(MARGIN, 44, title, "title")
    for i, line in enumerate(lines):
        drawing.text(MARGIN, 68 + 18 * i, line, "quiet")
    _draw_columns(drawing, labels, left, top)
    _draw_cells(drawing, weights, rows, columns, left, top)
    drawing.scale(left, bottom + 20)
    return drawing.render()


def _draw_columns(drawing: Drawing, labels: Sequence[str], left: float, top: float) -> None:
    for j, label in enumerate(labels):
        x = left + j * (WIDTH + GAP) + WIDTH / 2
        drawing.text(x, top - 10, label, _style(label), turn=-SLOPE)


def _draw_cells(
    drawing: Drawing,
    weights: Floats,
    rows: Sequence[str],
    columns: Sequence[str],
    left: float,
    top: float,
) -> None:
    drawing.raw(
        f'<pattern id="cells" x="{left:g}" y="{top:g}" width="{WIDTH + GAP}" '
        f'height="{HEIGHT + GAP}" patternUnits="userSpaceOnUse"><rect class="empty" '
        f'width="{WIDTH}" height="{HEIGHT}" rx="4"/></pattern>'
        f'<rect fill="url(#cells)" x="{left:g}" y="{top:g}" '
        f'width="{len(columns) * (WIDTH + GAP)}" height="{len(rows) * (HEIGHT + GAP)}"/>'
    )
    for i, row in enumerate(rows):
        y = top + i * (HEIGHT + GAP)
        label = shorten(row, LABEL)
        drawing.text(left - 12, y + HEIGHT / 2 + 5, label, f"end {_style(row)}".strip())
        for j, column in enumerate(columns):
            value = float(weights[i, j])
            x = left + j * (WIDTH + GAP)
            drawing.cell(x, y, WIDTH, HEIGHT, value=value, title=f"{row} → {column}: {value:.1%}")
            if value >= SHOWN:
                style = "number over" if value > DARK else "number"
                drawing.text(x + WIDTH / 2, y + HEIGHT / 2 + 4, f"{100 * value:.0f}", style)


def _style(label: str) -> str:
    return "special" if label == END else ""


def _cut(labels: Sequence[str], what: str) -> str:
    if len(labels) <= LONGEST:
        return ""
    return f" Only the first {LONGEST} of {len(labels)} {what} are drawn; attention.npz has all."
