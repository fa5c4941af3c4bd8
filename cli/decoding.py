"""The flags of `[decoding]` beyond beam and length penalty, for the verbs that search.

A verb takes them all at once, as keywords under the names of the settings:

    @with_decoding_flags
    def translate(model: Model, beam: Beam = None, **decoding: Any) -> None: ...
"""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfm.data.errors import SettingsError

if TYPE_CHECKING:
    from tfm.model.decoding import DecodingSettings

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
        _setting("repetition_penalty", "T", "Divide logits of pieces that are there already by T"),
    ],
    "coverage_penalty": Annotated[
        float | None,
        _setting("coverage_penalty", "B", "Add B sum_i log(min(attention to i, 1)) to scores"),
    ],
    "beam_groups": Annotated[
        int | None,
        _setting("beam_groups", "G", "Groups of the beam that avoid the same pieces"),
    ],
    "diversity": Annotated[
        float | None, _setting("diversity", "D", "How much an earlier group's choice counts less")
    ],
    "sampling": Annotated[
        bool | None,
        typer.Option("--sampling", help="Draw translations from the model (decoding.sampling)."),
    ],
    "temperature": Annotated[
        float | None, _setting("temperature", "T", "Sample with probabilities p^(1/T)")
    ],
    "top_k": Annotated[
        int | None, _setting("top_k", "K", "Sample among the K most probable pieces")
    ],
    "top_p": Annotated[
        float | None,
        _setting("top_p", "P", "Sample among the fewest pieces with probability P together"),
    ],
    "epsilon": Annotated[
        float | None, _setting("epsilon", "E", "Sample among pieces with probability E or more")
    ],
    "sampling_seed": Annotated[
        int | None, _setting("sampling_seed", "N", "Other samples for another N")
    ],
}


def require_effect(decoding: "DecodingSettings", *, beam: int | None, n_best: int = 1) -> None:
    """Refuse `--n-best` and `--beam` where the search that is asked for has no use for them.

    Args:
        beam: as the flag gives it; what a settings file has does not count.

    Raises:
        SettingsError: names the flag and the remedy.
    """
    drawn = decoding.sampling and decoding.mbr == "none"
    if n_best > decoding.beam and not drawn:
        raise SettingsError(
            f"--n-best {n_best}: must be at most `beam` ({decoding.beam}), but is {n_best}; "
            f"--beam {n_best} widens it"
        )
    if beam is not None and drawn:
        raise SettingsError(
            f"--beam {beam}: does nothing with sampling; --n-best says how many are drawn, and "
            "with --mbr the beam does"
        )


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
