"""Which pictures a report has, and what they are called: the same for SVG and PNG."""

from collections.abc import Sequence
from typing import NamedTuple

from tfm.model.inspection.capture import Floats
from tfm.model.inspection.report import AttentionReport
from tfm.model.inspection.sentence import END


class View(NamedTuple):
    """A picture: one map [row, column], or a grid of maps [layer, head, row, column]."""

    name: str  # of its file, without suffix
    weights: Floats
    rows: Sequence[str]
    columns: Sequence[str]
    title: str
    caption: str


def views(report: AttentionReport) -> list[View]:
    """Return the pictures of `report`: cross-attention between words, then all heads, by pieces."""
    maps, source, target = report.capture, report.source, report.target
    return [
        View(
            "cross",
            report.selected,
            target.labels,
            source.labels,
            "Where each translated word looks",
            f"Cross-attention of {report.selection_text}: the words of the translation (rows) over "
            f"the words of the source (columns), in percent; {END} is the end of the sentence.",
        ),
        View(
            "cross-heads",
            maps.cross,
            target.pieces,
            source.pieces,
            "Cross-attention, all layers and heads",
            "Each row is the step that writes that target piece; columns are source pieces.",
        ),
        View(
            "encoder",
            maps.encoder,
            source.pieces,
            source.pieces,
            "Encoder self-attention, all layers and heads",
            "Each row is a source piece; columns are the source pieces it looks at."
            + encoder_note(report),
        ),
        View(
            "decoder",
            maps.decoder,
            target.pieces,
            report.inputs,
            "Decoder self-attention, all layers and heads",
            "Each row is the step that writes that target piece; columns are the pieces written "
            "before it, which are all that it may see.",
        ),
    ]


def encoder_note(report: AttentionReport) -> str:
    """Return a sentence on each form of attention in the encoder that is not full; "" for none."""
    notes = []
    for form, meaning in (
        ("local", f"is local: pieces at most {report.window // 2} away"),
        ("linear", "is linear: these are the weights that its sums imply"),
    ):
        layers = [str(i) for i, found in enumerate(report.encoder_forms, 1) if found == form]
        if layers:
            notes.append(f" Attention in {listed(layers)} {meaning}.")
    return "".join(notes)


def listed(layers: Sequence[str]) -> str:
    """Return "layer 1" or "layers 1, 2, 3"."""
    return f"layer{'s' if layers[1:] else ''} {', '.join(layers)}"
