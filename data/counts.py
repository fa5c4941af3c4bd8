"""Numbers of things, in words."""


def counted(number: int, noun: str) -> str:
    """Return a number and what it counts: 1 line, 1,024 lines, 2 batches."""
    if number != 1:
        noun += "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}"
