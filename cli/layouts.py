"""How a translation is written: as text, as a list of alternatives, or as a JSON object."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tfm.cli.records import Record, dump_record

if TYPE_CHECKING:
    from tfm.model.translator import Candidate, Translation

# The place of a record counted from 0, the record, and its translation, to what is written. The
# translation of a bad record is that of a blank line.
Layout = Callable[[int, Record, "Translation"], str]

FIELDS = ("log_probability", "score", "tokens", "truncated")  # of each alternative, beside its text


def layout_of(*, as_json: bool, n_best: int, scores: bool) -> Layout:
    """Return the layout that the options ask for."""
    if as_json:
        return _as_json
    if n_best > 1:
        return _as_list
    return _with_score if scores else _as_text


def _as_text(place: int, record: Record, translation: "Translation") -> str:
    return f"{translation.text}\n"


def _with_score(place: int, record: Record, translation: "Translation") -> str:
    return f"{translation.score:.4f}\t{translation.text}\n"


def _as_list(place: int, record: Record, translation: "Translation") -> str:
    rows = [f"{place} ||| {each.text} ||| {each.score:.4f}\n" for each in translation.n_best]
    return "".join(rows)


def _as_json(place: int, record: Record, translation: "Translation") -> str:
    if record.error is not None:
        return dump_record(record.fields | {"error": record.error})
    alternatives = [_alternative(each) for each in translation.n_best]
    return dump_record(record.fields | _alternative(translation) | {"n_best": alternatives})


def _alternative(candidate: "Candidate") -> dict[str, Any]:
    fields = {"translation": candidate.text} | {name: getattr(candidate, name) for name in FIELDS}
    return fields if candidate.utility is None else fields | {"utility": candidate.utility}
