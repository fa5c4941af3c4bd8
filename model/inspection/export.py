"""A report as files: all numbers in npz, their meaning in JSON, and pictures as SVG or PNG.

Equal reports give equal bytes: no dates, no random names. No file refers to anything outside.
"""

import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from tfm.data.errors import UserError
from tfm.data.lines import TEMPORARY, atomic_writer, reason
from tfm.model.attention.alignment import alignment_layer
from tfm.model.inspection.capture import Floats
from tfm.model.inspection.grid import grid
from tfm.model.inspection.heatmap import heatmap
from tfm.model.inspection.report import AttentionReport
from tfm.model.inspection.sentence import Sentence
from tfm.model.inspection.views import View, views
from tfm.model.tensor_file import tfm_version

SCHEMA = "tfm.attention/1"
NPZ, JSON = "attention.npz", "attention.json"
PICTURES = ("cross", "cross-heads", "encoder", "decoder")
ORIENTATION = (
    "[layer, head, query, key]. Row t of dec_self and cross is the step that predicts target "
    "piece t, </s> included. The columns of dec_self are that step's inputs: <s>, then the target "
    "pieces before t. Layers and heads in `selection` and `alignment` count from 1, words from 0."
)
Format = Literal["npz", "json", "svg", "png"]
FORMATS: tuple[Format, ...] = get_args(Format)
DEFAULT_FORMATS: tuple[Format, ...] = ("npz", "json", "svg")


def write_report(
    report: AttentionReport, directory: Path, *, formats: Sequence[Format] = DEFAULT_FORMATS
) -> list[Path]:
    """Write `report` into `directory`, which is made if need be, and return the files.

    An older report there is replaced, each file in one step; a directory that holds anything else
    is refused.

    Raises:
        UserError: for such a directory, one that cannot be made, or PNG without matplotlib.
        DataError: if a file cannot be written.
    """
    contents = render(report, formats)  # before anything is touched
    _prepare(directory)
    for name, content in contents.items():
        with atomic_writer(directory / name, binary=True) as file:
            file.write(content)
    for stale in _known_names() - contents.keys():
        (directory / stale).unlink(missing_ok=True)
    return [directory / name for name in contents]


def render(report: AttentionReport, formats: Sequence[Format]) -> dict[str, bytes]:
    """Return the content of each file of `report` by name."""
    contents: dict[str, bytes] = {}
    if "npz" in formats:
        contents[NPZ] = npz(report)
    for view in views(report) if "svg" in formats else []:
        contents[f"{view.name}.svg"] = svg(view).encode()
    if "png" in formats:
        from tfm.model.inspection.png import png

        contents |= {f"{view.name}.png": png(view) for view in views(report)}
    if "json" in formats:
        document = to_json(report, maps=NPZ if "npz" in formats else None)
        contents[JSON] = dump_json(document).encode()
    return contents


def svg(view: View) -> str:
    """Draw `view`: one map large, or many small."""
    draw = heatmap if view.weights.ndim == 2 else grid
    return draw(view.weights, view.rows, view.columns, title=view.title, caption=view.caption)


def npz(report: AttentionReport) -> bytes:
    """Return all maps in fp32, with ids and words, as a compressed npz file."""
    maps, source, target = report.capture, report.source, report.target
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        enc_self=maps.encoder,
        dec_self=maps.decoder,
        cross=maps.cross,
        src_ids=np.array(source.ids, np.int32),
        tgt_ids=np.array(target.ids, np.int32),
        src_word=np.array(source.word_of_piece, np.int32),
        tgt_word=np.array(target.word_of_piece, np.int32),
        tgt_log_prob=maps.log_probabilities,
        meta=np.array(dump_json(to_json(report, maps=NPZ))),
    )
    return buffer.getvalue()


def to_json(report: AttentionReport, *, maps: str | None) -> dict[str, Any]:
    """Describe `report` as plain data; `maps` names the npz file beside it, if there is one.

    The cross-attention between words, averaged over the heads of each layer, is in it.
    """
    target = _sentence(report.target) | {
        "inputs": report.inputs,
        "log_probabilities": rounded(report.capture.log_probabilities),
    }
    return {
        "schema": SCHEMA,
        "tfm": tfm_version(),
        "torch": torch.__version__,
        "model": None if report.origin is None else asdict(report.origin),
        "backend": report.backend,
        "capture": "teacher forcing, weights by their definition in fp32",
        "encoder_attention": {"layers": report.encoder_forms}
        | ({"window": report.window} if "local" in report.encoder_forms else {}),
        "orientation": ORIENTATION,
        "source": _sentence(report.source),
        "target": target,
        "selection": {
            "layer": report.selection.layer,
            "head": report.selection.head or "mean",
        },
        "alignment": {
            "method": "the largest share of attention in the steps that write the word",
            "layer": alignment_layer(report.layers),
            "head": "mean",
            "pharaoh": pharaoh(report),
        },
        "verification": asdict(report.capture.verification)
        | {"passed": report.capture.verification.passed},
        "maps": maps,
        "cross_words": {
            "rows": report.target.labels,
            "columns": report.source.labels,
            "mean_of_heads": rounded(report.cross_words.mean(1)),
        },
    }


def pharaoh(report: AttentionReport) -> str:
    """Return the alignment as `source-target` pairs of words, counted from 0."""
    return " ".join(f"{link.source}-{link.target}" for link in report.alignment)


def dump_json(document: dict[str, Any]) -> str:
    """Write a JSON object with one top-level key a line, short enough to look at."""
    lines = [f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in document.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def rounded(values: Floats) -> Any:
    """Return nested lists of numbers with 6 decimals."""
    return np.round(values.astype(np.float64), 6).tolist()


def _sentence(sentence: Sentence) -> dict[str, Any]:
    return {
        "text": sentence.text,
        "words": sentence.word_texts,
        "pieces": sentence.pieces,
        "ids": sentence.ids,
        "offsets": sentence.spans,
        "word_of_piece": sentence.word_of_piece,
    }


def _known_names() -> set[str]:
    return {NPZ, JSON, *(f"{name}.{kind}" for name in PICTURES for kind in ("svg", "png"))}


def _prepare(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for leftover in directory.glob(TEMPORARY):  # of a kill in the midst of writing
            leftover.unlink(missing_ok=True)
        foreign = sorted({path.name for path in directory.iterdir()} - _known_names())
    except OSError as error:
        raise UserError(
            f"{directory}: cannot be used as a directory: {reason(error)}; choose another -o"
        ) from None
    if foreign:
        raise UserError(
            f"{directory}: holds other files ({foreign[0]}); choose a new or empty directory for -o"
        )
