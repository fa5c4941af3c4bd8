"""The network and all that runs it.

One legend of shape letters holds in every file below this one:

    B batch   S source length   T target length   D d_model   H heads   K head width (D / H)
    F inner width of the feed-forward network     V vocabulary         N beams
    R rows of a decoding step (B * N)

Masks are boolean and True means may attend. `memory` is the output of the encoder.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfm.model.request import Request
    from tfm.model.transformer import Transformer
    from tfm.model.translator import Translation, Translator

__all__ = ["Request", "Transformer", "Translation", "Translator"]


def __getattr__(name: str) -> Any:
    """Import the public classes on first use, so that `tfm.model.settings` needs no torch."""
    if name == "Request":
        from tfm.model.request import Request

        return Request
    if name == "Transformer":
        from tfm.model.transformer import Transformer

        return Transformer
    if name in ("Translation", "Translator"):
        from tfm.model import translator

        return getattr(translator, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
