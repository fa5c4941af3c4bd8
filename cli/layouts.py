"""How a translation is written: as text, as a list of alternatives, or as a JSON object."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from tfm.cli.records import Record, dump_record

if TYPE_CHECKING:
    from tfm.model.inspection.alignments import Alignment
    from tfm.model.translation import Candidate, Translation

FIELDS = ("log_probability", "score", "tokens", "truncated")  # of each alternative, beside its text


class Result(NamedTuple):
    """A record and what became of it."""

    place: int  # of the record, counted from 0
    record: Record
    translation: "Translation"  # of a bad record, that of a blank line
    alignment: "Alignment | None"  # if it was asked for


Layout = Callable[[Result], str]


class Formats(NamedTuple):
    """Whether records are read, and whether they are written."""

    jsonl: bool
    as_json: bool


def formats_of(
    input_: Path | None, output: Path | None, *, jsonl: bool, as_json: bool, text: bool
) -> Formats:
    """Return what the options and the names of the files ask for.

    Raises:
        typer.BadParameter: if they contradict one another.
    """
    jsonl = jsonl or (input_ is not None and ".jsonl" in input_.suffixes[-2:])
    as_json = as_json or (output is not None and output.suffix == ".jsonl")
    if text and not jsonl:
        raise typer.BadParameter("--text is for --jsonl; lines of text give text anyway")
    if text and as_json:
        raise typer.BadParameter("--text and --json (or -o FILE.jsonl) ask for different things")
    return Formats(jsonl, as_json or (jsonl and not text))


def layout_of(*, as_json: bool, n_best: int, scores: bool, alignment: bool = False) -> Layout:
    """Return the layout that the options ask for.

    Raises:
        typer.BadParameter: if one of them would do nothing there.
    """
    if scores and as_json:
        raise typer.BadParameter("--scores is for lines of text; JSON has the scores anyway")
    if scores and n_best > 1:
        raise typer.BadParameter("--scores is for one translation a line; --n-best has them anyway")
    if alignment and not as_json:
        raise typer.BadParameter("--alignment is written in JSON; add --json")
    if as_json:
        return _as_json
    if n_best > 1:
        return _as_list
    return _with_score if scores else _as_text


def _as_text(result: Result) -> str:
    return f"{result.translation.text}\n"


def _with_score(result: Result) -> str:
    return f"{result.translation.score:.4f}\t{result.translation.text}\n"


def _as_list(result: Result) -> str:
    return "".join(
        f"{result.place} ||| {each.text} ||| {each.score:.4f}\n"
        for each in result.translation.n_best
    )


def _as_json(result: Result) -> str:
    record, translation = result.record, result.translation
    if record.error is not None:
        return dump_record(record.fields | {"error": record.error})
    found = _alternative(translation)
    if result.alignment is not None:
        found["alignment"] = _alignment(result.alignment)
    found["n_best"] = [_alternative(each) for each in translation.n_best]
    # An `error` of an earlier run, whose bad records were mended, would mark this one as bad.
    carried = {name: value for name, value in record.fields.items() if name != "error"}
    return dump_record(carried | found)


def _alternative(candidate: "Candidate") -> dict[str, Any]:
    fields = {"translation": candidate.text} | {name: getattr(candidate, name) for name in FIELDS}
    return fields if candidate.utility is None else fields | {"utility": candidate.utility}


def _alignment(alignment: "Alignment") -> dict[str, Any]:
    """Return words, links (source, target; counted from 0) and the map in four decimals."""
    return {
        "source": alignment.source,
        "target": alignment.target,
        "hard": [[link.source, link.target] for link in alignment.hard],
        "soft": [[round(float(share), 4) for share in row] for row in alignment.soft],
    }
