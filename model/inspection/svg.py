"""SVG by hand: a drawing made of rectangles, paths and text, which no file points outside of.

One ink shows all values: its opacity is the value, from 0 to 1, so that brightness alone carries
the meaning, on a light page and, by the viewer's own setting, on a dark one.
"""

import re
import textwrap
from xml.sax.saxutils import escape, quoteattr

from tfm.model.inspection.labels import cells

STYLE = """
svg{font-family:ui-sans-serif,system-ui,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
text{font-size:14px;fill:#1f2733}
.page{fill:#ffffff}
.title{font-size:19px;font-weight:650}
.quiet{fill:#5f6b7a;font-size:12.5px}
.small{fill:#5f6b7a;font-size:11px}
.special{fill:#8b95a3;font-style:italic}
.empty{fill:#eef2f8}
.ink{fill:#0a3fb8}
path{shape-rendering:crispEdges}
.stop{stop-color:#0a3fb8}
.number{font-size:11.5px;text-anchor:middle;fill:#1f2b44;pointer-events:none}
.over{fill:#ffffff}
.end{text-anchor:end}
.middle{text-anchor:middle}
@media (prefers-color-scheme:dark){
text{fill:#e4e9f0}
.page{fill:#0f141b}
.quiet,.small{fill:#98a4b3}
.special{fill:#7d8896}
.empty{fill:#1a222d}
.ink{fill:#8ec2ff}
.stop{stop-color:#8ec2ff}
.number{fill:#e4ebf5}
.over{fill:#0b1420}
}
"""
# XML 1.0 has no way to write these characters.
_UNWRITABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Drawing:
    """A growing SVG document; coordinates in pixels from the upper left.

    Args:
        title, description: what screen readers say.
    """

    def __init__(self, width: float, height: float, *, title: str, description: str) -> None:
        w, h = number(width), number(height)
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" '
            f'viewBox="0 0 {w} {h}" role="img" aria-labelledby="title description">',
            f'<title id="title">{_text(title)}</title>',
            f'<desc id="description">{_text(description)}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{w}" height="{h}" rx="10"/>',
        ]

    def raw(self, markup: str) -> None:
        """Add markup that holds no user's text."""
        self._parts.append(markup)

    def text(
        self, x: float, y: float, text: str, style: str = "", *, turn: float = 0, size: float = 0
    ) -> None:
        """Write `text` with its base line at (x, y), turned by `turn` degrees."""
        attributes = f" class={quoteattr(style)}" if style else ""
        if turn:
            attributes += f' transform="rotate({number(turn)} {number(x)} {number(y)})"'
        if size:
            attributes += f' style="font-size:{number(size)}px"'
        place = f'x="{number(x)}" y="{number(y)}"'
        self._parts.append(f'<text {place} xml:space="preserve"{attributes}>{_text(text)}</text>')

    def cell(
        self, x: float, y: float, width: float, height: float, *, value: float, title: str
    ) -> None:
        """Draw a value from 0 to 1 that says `title` when pointed at."""
        box = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
        self._parts.append(
            f'<rect class="ink" {box} rx="4" fill-opacity="{number(value)}">'
            f"<title>{_text(title)}</title></rect>"
        )

    def scale(self, x: float, y: float, *, width: float = 160) -> None:
        """Draw the legend: the ink from 0 to 1."""
        self.raw(
            '<linearGradient id="scale"><stop class="stop" offset="0" stop-opacity="0"/>'
            '<stop class="stop" offset="1" stop-opacity="1"/></linearGradient>'
        )
        box = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="10" rx="5"'
        self.raw(f'<rect class="empty" {box}/><rect fill="url(#scale)" {box}/>')
        for share in (0, 0.5, 1):
            self.text(x + share * width, y + 25, f"{share:.0%}", "small middle")
        self.text(x + width + 26, y + 9, "share of a row's attention", "small")

    def render(self) -> str:
        """Return the document."""
        return "\n".join([*self._parts, "</svg>\n"])


def number(value: float) -> str:
    """Write a number in as few characters as two decimals need."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def text_width(text: str, size: float = 14) -> float:
    """Estimate the width of `text` in pixels; wide characters count double."""
    return cells(text) * size * 0.6


def wrap(text: str, width: float, size: float = 12.5) -> list[str]:
    """Break a sentence of ours into lines of at most `width` pixels."""
    return textwrap.wrap(text, max(20, int(width / (size * 0.52))))


def _text(text: str) -> str:
    return escape(_UNWRITABLE.sub("\ufffd", text))
