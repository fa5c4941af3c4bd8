"""What is said of a command line that is wrong: one phrase with the value, whoever found it.

Typer checks values by pydantic, whose messages are about Python, and some of which lack the value.
"""

import re
from typing import Any

import typer

NUMBERS = {"int": "a whole number", "float": "a number"}  # by how pydantic's kinds of error begin


def describe_usage(error: typer.TyperException) -> str:
    """Return one line that says what is wrong, and where help is."""
    context = getattr(error, "ctx", None)  # Typer sets it, also for what a verb itself raises
    place = context.command_path if context else "tfm"
    # Where no parameter is named, Typer's prefix stands before a sentence that is whole without it.
    message = error.format_message().removeprefix("Invalid value: ")
    found: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    if isinstance(error, typer.BadParameter) and error.param is not None and found:
        message = f"{_as_written(error.param, found[0]['input'])}: {rule_of(found[0])}"
    return f"{message.rstrip('.')}; see {place} --help"


def rule_of(found: dict[str, Any]) -> str:
    """Return what a value must be, for an error that pydantic found."""
    kind, bounds = found["type"], found.get("ctx", {})
    if kind == "greater_than_equal":
        return f"must be at least {bounds['ge']:g}"
    if kind == "less_than_equal":
        return f"must be at most {bounds['le']:g}"
    if (number := NUMBERS.get(kind.split("_")[0])) is not None:
        return f"must be {number}"
    message = str(found["msg"]).removeprefix("Value error, ")
    if choices := re.fullmatch(r".* is not one of ('.*')\.", message, re.DOTALL):
        return f"must be one of {choices[1].replace(chr(39), '')}"
    return message


def _as_written(parameter: Any, value: object) -> str:
    names = [name for name in parameter.opts if name.startswith("--")]
    return f"{names[0] if names else parameter.get_error_hint()} {value}"
