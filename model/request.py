"""What is asked of a translator for one text."""

from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True)
class Request:
    """A text to translate, and what is to hold for it alone.

    What holds for all texts of a run stands in `DecodingSettings`.

    Attributes:
        text: the source.
        prefix: how the translation begins; white space at its end does not count.
        required: words or phrases that it has, in any order; what follows in the same word is the
            model's choice. With `truncated`, not all of them need be there. Search must be by beam.
        forbidden: words or phrases that it does not have, as whole words in the same spelling.
    """

    text: str
    prefix: str = ""
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()

    def part(self, text: str, *, first: bool) -> Self:
        """Return what is asked for `text`, a part of this one that is translated by itself.

        The first one has the prefix, and none is told in which of them required words belong.
        """
        return replace(self, text=text, prefix=self.prefix if first else "", required=())
