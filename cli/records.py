"""What is translated, a record each: a line of text, or of JSON with fields to carry through."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tfm.data.errors import DataError
from tfm.data.lines import decode_line
from tfm.model.request import Request


@dataclass(frozen=True)
class Record:
    """One line of input: what is asked, the fields that come out again, or what is wrong."""

    request: Request = Request("")
    fields: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


Parse = Callable[[bytes, int], Record]  # a line and its number, counted from 1, to its record


def text_record(raw: bytes, number: int, *, where: str) -> Record:
    """Return the record of a line of text, the `number`-th of the file called `where`.

    Raises:
        DataError: if it is not UTF-8.
    """
    text = decode_line(raw, where, number)
    return Record(Request(text), {"source": text})


def json_record(raw: bytes, number: int, *, language: str) -> Record:
    """Read an object with the source text in `source`, or else in the field named `language`.

    What is wrong with it becomes its `error`, which names the `number` of the record, so that one
    bad record does not end a long run.
    """
    place = f"record {number}"
    fields: dict[str, Any] = {}
    try:
        value = json.loads(_decode(raw, number, place))
        if not isinstance(value, dict):
            raise DataError(f'{place}: not a JSON object, as in {{"source": "A dog runs."}}')
        fields = value
        return Record(Request(_source(fields, place, language)), fields)
    except (ValueError, RecursionError) as error:  # nesting too deep, or a number too long, too
        return Record(fields=fields, error=f"{place}: not JSON: {error}")
    except DataError as error:
        return Record(fields=fields, error=str(error))


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


def _source(fields: dict[str, Any], place: str, language: str) -> str:
    name = "source" if "source" in fields else language
    if name not in fields:
        raise DataError(f"{place}: no field `source` or `{language}`")
    text = fields[name]
    if not isinstance(text, str):
        raise DataError(f"{place}: `{name}` must be a string, but is {json.dumps(text)[:60]}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError(f"{place}: `{name}` has half a surrogate pair, which is no text") from None
    return text
