"""Numbers of things, in words."""


def counted(number: int, noun: str) -> str:
    """Return a number and what it counts: 1 line, 1,024 lines."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
