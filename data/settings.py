"""Sections of a settings file: frozen dataclasses, read strictly.

A section states only what differs from its defaults. Unknown keys and wrong types are refused with
the file, the key and the nearest valid key; ranges are checked by each section's `__post_init__`.
"""

import difflib
import json
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

from tfm.data.errors import OptionError, SettingsError

Section = TypeVar("Section")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSettings:
    """`[data]`: which languages, and which pairs are left out of training."""

    source: str = "en"
    target: str = "de"
    max_length: int = 256  # pieces; a pair with a longer side is dropped from training, and counted

    def __post_init__(self) -> None:
        require(self.max_length >= 1, "max_length", self.max_length, "must be at least 1")
        require(self.source != self.target, "target", self.target, "must differ from `source`")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerSettings:
    """`[tokenizer]`: the SentencePiece model that is trained when none is given."""

    vocab_size: int = 8000
    kind: Literal["unigram", "bpe"] = "unigram"
    separate: bool = False  # one vocabulary per language instead of a joint one

    def __post_init__(self) -> None:
        # Four pieces are special; SentencePiece counts in 32 bits.
        require(self.vocab_size >= 5, "vocab_size", self.vocab_size, "must be at least 5")
        require(self.vocab_size < 2**31, "vocab_size", self.vocab_size, "must be below 2^31")


class BrokenRule(SettingsError):
    """A value that its section's rules refuse; `key` lets the reader say where it came from."""

    def __init__(self, key: str, value: object, rule: str) -> None:
        super().__init__(f"`{key}` {rule}, but is {as_written(value)}.")
        self.key = key


def require(condition: bool, key: str, value: object, rule: str) -> None:
    """Raise `BrokenRule` in the house phrase unless `condition` holds."""
    if not condition:
        raise BrokenRule(key, value, rule)


def as_written(value: object) -> str:
    """Return `value` as a TOML file would write it, near enough for a message."""
    return json.dumps(value, ensure_ascii=False, default=str)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the valid name closest to `name`, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean `{close[0]}`?" if close else "valid: " + ", ".join(sorted(known))


def read_section(
    cls: type[Section],
    table: Mapping[str, Any],
    where: str,
    origins: Mapping[str, str] = types.MappingProxyType({}),
) -> Section:
    """Build the section `cls` from a TOML table.

    Args:
        where: what an error calls the place of the table.
        origins: the same for single keys that the command line gives.

    Raises:
        SettingsError: OptionError where the command line is at fault.
    """
    hints = typing.get_type_hints(cls)
    known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    for key, value in table.items():
        place = origins.get(key, where)
        wrong = OptionError if key in origins else SettingsError
        if key not in known:
            raise wrong(f"{place}: unknown key `{key}`; {nearest(key, known)}")
        if not _fits(value, hints[key]):
            raise wrong(
                f"{place}: `{key}` must be {_describe(hints[key])}, but is {as_written(value)}."
            )
        if isinstance(value, int) and abs(value) >= 2**63:  # what TOML, numpy and torch can hold
            raise wrong(f"{place}: `{key}` must be below 2^63, but is {value}.")
    try:
        return cls(**{key: _coerce(value, hints[key]) for key, value in table.items()})
    except BrokenRule as error:
        wrong = OptionError if error.key in origins else SettingsError
        raise wrong(f"{origins.get(error.key, where)}: {error}") from None


def _fits(value: object, hint: Any) -> bool:
    if typing.get_origin(hint) is Literal:
        return isinstance(value, str) and value in typing.get_args(hint)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return abs(value) <= sys.float_info.max  # neither infinite nor NaN
    return isinstance(value, hint)


def _coerce(value: Any, hint: Any) -> Any:
    return float(value) if hint is float else value


def _describe(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(f'"{option}"' for option in typing.get_args(hint))
    names = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
    return names[hint]
