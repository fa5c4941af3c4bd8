"""JSON lines as input: a record a line, whose other fields are carried through."""

import json
from dataclasses import dataclass, field
from typing import Any

from tfm.data.errors import DataError


@dataclass(frozen=True)
class Record:
    """One line of JSON: its fields, and its source text or what is wrong with it."""

    fields: dict[str, Any] = field(default_factory=dict)
    source: str = ""
    error: str | None = None


def read_record(line: str, *, place: str, language: str) -> Record:
    """Read an object with the source text in `source`, or else in the field named `language`.

    What is wrong with it becomes its `error`, which begins with `place`, so that one bad record
    does not end a long run.
    """
    fields: dict[str, Any] = {}
    try:
        value = json.loads(line)
        if not isinstance(value, dict):
            raise DataError(f'{place}: not a JSON object, as in {{"source": "A dog runs."}}')
        fields = value
        return Record(fields, _source(fields, place, language))
    except (ValueError, RecursionError) as error:  # nesting too deep, or a number too long, too
        return Record(fields, error=f"{place}: not JSON: {error}")
    except DataError as error:
        return Record(fields, error=str(error))


def dump_record(fields: dict[str, Any]) -> str:
    """Return `fields` as a line of JSON that has a UTF-8 form."""
    text = json.dumps(fields, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can write
        text = json.dumps(fields)
    return text + "\n"


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
