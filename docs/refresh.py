"""Set the line numbers in docs/mathematics.md to where the quoted code stands now."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "mathematics.md"
LINK = re.compile(r"\[(?P<file>\S+\.py), line \d+\]\(\.\./(?P=file)#L\d+\): `(?P<code>.+)`")


def refreshed(page: str) -> str:
    """Return the page with each link to code at the first line that holds what it quotes.

    Raises:
        LookupError: if the file is gone, or has no such line any more.
    """
    return LINK.sub(_at_its_line, page)


def _at_its_line(link: re.Match[str]) -> str:
    file, code = link["file"], link["code"]
    path = DOCS.parent / file
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    number = next((i for i, line in enumerate(lines, 1) if code in line), None)
    if number is None:
        raise LookupError(f"{file}: no line with `{code}`; quote in {PAGE.name} what is there now")
    return f"[{file}, line {number}](../{file}#L{number}): `{code}`"


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text("utf-8")), "utf-8")
