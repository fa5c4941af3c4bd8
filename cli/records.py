"""What is translated, a record each: a line of text, or of JSON with fields to carry through."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfm.data.counts import counted
from tfm.data.errors import DataError, UserError
from tfm.data.lines import decode_line
from tfm.model.request import Request


@dataclass(frozen=True)
class Record:
    """One line of input: what is asked, the fields that come out again, or what is wrong."""

    request: Request = Request("")
    fields: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


Parse = Callable[[bytes, int], Record]  # a line and its number, counted from 1, to its record


def text_record(
    raw: bytes, number: int, *, where: str, prefixes: Sequence[str] | None = None
) -> Record:
    """Return the record of a line of text, the `number`-th of the file called `where`.

    Args:
        prefixes: of each line, how its translation begins; None leaves that to the model.

    Raises:
        DataError: if it is not UTF-8, or there is no prefix for it.
    """
    text = decode_line(raw, where, number)
    if prefixes is None:
        return Record(Request(text), {"source": text})
    if number > len(prefixes):
        raise DataError(
            f"--prefix-file: {counted(len(prefixes), 'line')}, but {where} has more; each line "
            "needs one, a blank one where the translation may begin as it likes"
        )
    return Record(Request(text, prefix=prefixes[number - 1]), {"source": text})


def json_record(
    raw: bytes, number: int, *, language: str, require_possible: Callable[[Request], None]
) -> Record:
    """Read an object with the source text in `source`, or else in the field named `language`.

    `prefix`, a string, and `required` and `forbidden`, lists of strings, say what is to hold for
    its translation: see `Request`. Tables that are written as records have null for nothing.

    What is wrong with it becomes its `error`, which names the `number` of the record, so that one
    bad record does not end a long run.

    Args:
        require_possible: raises a `UserError` for a request that cannot be met.
    """
    place = f"record {number}"
    fields: dict[str, Any] = {}
    try:
        text = _decode(raw, number, place)
        value = json.loads(text, parse_float=_finite, parse_constant=_refuse_constant)
        if not isinstance(value, dict):
            raise DataError(f'{place}: not a JSON object, as in {{"source": "A dog runs."}}')
        fields = value
        request = _request(fields, place, language)
        _require_possible(request, place, require_possible)
        return Record(request, fields)
    except (ValueError, RecursionError) as error:  # nesting too deep, or a number too long, too
        return Record(fields=fields, error=f"{place}: not JSON: {error}")
    except DataError as error:
        return Record(fields=fields, error=str(error))


def _finite(text: str) -> float:
    """Read a number that can be written again: 1e999 would come out as what is no JSON."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is beyond the numbers that can be carried through")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a value of JSON, but of Python's own kind of it")


def dump_record(fields: dict[str, Any]) -> str:
    """Return `fields` as a line of JSON that has a UTF-8 form."""
    text = json.dumps(fields, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can write
        text = json.dumps(fields)
    return text + "\n"


def _decode(raw: bytes, number: int, place: str) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        raise DataError(f"{place}: not UTF-8 at byte {error.start + 1} (0x{byte:02X})") from None
    return text.removeprefix("\ufeff") if number == 1 else text


def _require_possible(
    request: Request, place: str, require_possible: Callable[[Request], None]
) -> None:
    try:
        require_possible(request)
    except UserError as error:
        raise DataError(f"{place}: {error}") from None


def _request(fields: dict[str, Any], place: str, language: str) -> Request:
    name = "source" if "source" in fields else language
    if name not in fields:
        raise DataError(f"{place}: no field `source` or `{language}`")
    return Request(
        _text(fields[name], name, place),
        prefix=_line("" if fields.get("prefix") is None else fields["prefix"], "prefix", place),
        required=_lines(fields, "required", place),
        forbidden=_lines(fields, "forbidden", place),
    )


def _lines(fields: dict[str, Any], name: str, place: str) -> tuple[str, ...]:
    value = [] if fields.get(name) is None else fields[name]
    if not isinstance(value, list):
        shown = json.dumps(value)[:60]
        raise DataError(f"{place}: `{name}` must be a list of strings, but is {shown}")
    return tuple(_line(each, name, place) for each in value)


def _line(text: object, name: str, place: str) -> str:
    text = _text(text, name, place)
    if "\n" in text or "\r" in text:
        raise DataError(f"{place}: `{name}` has a line break, which no translation has")
    return text


def _text(text: object, name: str, place: str) -> str:
    if not isinstance(text, str):
        raise DataError(f"{place}: `{name}` must be a string, but is {json.dumps(text)[:60]}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError(f"{place}: `{name}` has half a surrogate pair, which is no text") from None
    return text
