"""What is asked of a translator for one text."""

from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True)
class Request:
    """A text to translate, and what is to hold for it alone.

    What holds for all texts of a run stands in `DecodingSettings`.
    """

    text: str

    def part(self, text: str) -> Self:
        """Return what is asked for `text`, a part of this one that is translated by itself."""
        return replace(self, text=text)
