"""A report to read in a terminal: blocks that darken with attention, and words beside them.

Plain Unicode text without colours, so that a pipe, a log and a terminal get the same.
"""

from collections.abc import Sequence

import numpy as np

from tfm.model.inspection.labels import cells, pad, shorten
from tfm.model.inspection.report import AttentionReport

SHADES = " ░▒▓█"
EDGES = (0.05, 0.25, 0.5, 0.75)  # shares at which the next shade begins
LABEL = 16  # cells of the longest word
ROWS = 60  # target words shown; the rest is in the files


def attention_map(report: AttentionReport, *, width: int = 80) -> str:
    """Return the selected cross-attention as text: target words down, source words across.

    Each row ends with the source word that has the largest share. Columns that `width` terminal
    cells have no room for follow in a block below.
    """
    weights = report.selected
    rows = [_label(word) for word in report.target.labels[:ROWS]]
    columns = [_label(word) for word in report.source.labels]
    margin = max(cells(row) for row in rows) + 1
    best = [f"{weights[i].max():4.0%} {columns[weights[i].argmax()]}" for i in range(len(rows))]
    room = width - margin - max(cells(text) for text in best)
    lines = [f"cross-attention, {report.selection_text}; {_legend()}"]
    for block in _blocks([column_width(column) for column in columns], room):
        header = "".join(pad(columns[j], column_width(columns[j])) for j in block)
        lines += ["", " " * margin + header.rstrip()]
        for i, row in enumerate(rows):
            shades = "".join(_shade(weights[i, j], column_width(columns[j])) for j in block)
            lines.append(f"{pad(row, margin)}{shades}{best[i]}")
    if len(report.target.labels) > ROWS:
        lines += ["", f"the first {ROWS} of {len(report.target.labels)} rows; -o DIR writes all"]
    return "\n".join(lines)


def alignment_text(report: AttentionReport) -> str:
    """Return the alignment as `source-target` words, in the order of the target."""
    source, target = report.source.word_texts, report.target.word_texts
    pairs = [(source[link.source], target[link.target]) for link in report.alignment]
    return "  ".join(f"{_label(a)}-{_label(b)}" for a, b in pairs)


def verification_text(report: AttentionReport) -> str:
    """Return one line on what the maps were checked against, and how closely they agree."""
    check = report.capture.verification
    return (
        f"maps computed in fp32, checked against {report.backend} in {check.precision}: "
        f"largest difference {check.largest:.0e} in attention, {check.logits:.0e} in logits"
    )


def column_width(label: str) -> int:
    """Return the terminal cells of a column: those of its word, at least two, and a space."""
    return max(cells(label), 2) + 1


def _label(word: str) -> str:
    """Return a word cut to LABEL cells, without characters that would steer the terminal."""
    return shorten("".join(c if c.isprintable() else "\ufffd" for c in word), LABEL)


def _blocks(widths: Sequence[int], room: int) -> list[list[int]]:
    """Share out columns over blocks of at most `room` cells, at least one column each."""
    blocks: list[list[int]] = [[]]
    for j, width in enumerate(widths):
        if blocks[-1] and sum(widths[k] for k in blocks[-1]) + width > room:
            blocks.append([])
        blocks[-1].append(j)
    return blocks


def _shade(share: float, width: int) -> str:
    return SHADES[int(np.searchsorted(EDGES, share, side="right"))] * (width - 1) + " "


def _legend() -> str:
    parts = [f"{shade} from {edge:.0%}" for shade, edge in zip(SHADES[1:], EDGES, strict=True)]
    return ", ".join(parts)
