"""The flags of `[decoding]` beyond beam and length penalty, for the verbs that search.

A verb takes them all at once, as keywords under the names of the settings:

    @with_decoding_flags
    def translate(model: Model, beam: Beam = None, **decoding: Any) -> None: ...
"""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

Verb = Callable[..., None]


def _setting(key: str, metavar: str | None, text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        f"--{key.replace('_', '-')}", metavar=metavar, help=f"{text} (decoding.{key})."
    )
    return option


DECODING_FLAGS: dict[str, Any] = {
    "min_length": Annotated[
        int | None, _setting("min_length", "N", "Least pieces to write, end included")
    ],
    "no_repeat_ngram": Annotated[
        int | None, _setting("no_repeat_ngram", "N", "Never write the same N pieces in a row twice")
    ],
    "repetition_penalty": Annotated[
        float | None,
        _setting(
            "repetition_penalty", "T", "Count log P of a piece that is there already T times; 1: no"
        ),
    ],
}


def with_decoding_flags(verb: Verb) -> Verb:
    """Give a verb the flags in place of its `**` parameter; None is a flag that is not given."""
    signature = inspect.signature(verb)
    flags = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in DECODING_FLAGS.items()
    ]
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    verb.__signature__ = signature.replace(parameters=[*own, *flags])  # type: ignore[attr-defined]
    return verb
