"""Where a command reads and writes, looked at before the work that it would otherwise lose."""

import os
from collections.abc import Iterable
from pathlib import Path

from tfm.data.errors import DataError


def require_readable(path: Path | str | None) -> None:
    """Refuse a file that is not there or cannot be read; None and `-` are stdin.

    Raises:
        DataError: names the file and the reason.
    """
    if path is None or str(path) == "-":
        return
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: cannot be read: no such file or directory")
    if path.is_dir():
        raise DataError(f"{path}: cannot be read: is a directory")
    if not os.access(path, os.R_OK):
        raise DataError(f"{path}: cannot be read: permission denied")


def require_writable(path: Path | str | None, *, inputs: Iterable[Path | str | None] = ()) -> None:
    """Refuse an output file that could not be written; None and `-` are stdout.

    Args:
        inputs: what is read meanwhile, and must not be replaced; None, `-` and what is no file
            do not count.

    Raises:
        DataError: names the file, the reason and the remedy.
    """
    if path is None or str(path) == "-":
        return
    path = Path(path)
    if path.is_fifo() or path.is_char_device():
        return
    require_replaceable(path)
    for read in inputs:
        if path.exists() and read is not None and os.path.exists(read) and path.samefile(read):
            raise DataError(f"{path}: is read, and would be replaced; choose another -o")


def require_replaceable(path: Path) -> None:
    """Refuse what is no regular file and cannot become one.

    Raises:
        DataError: names the file, the reason and the remedy.
    """
    if path.exists() and not path.is_file():
        kind = "a directory" if path.is_dir() else "not a regular file"
        raise DataError(f"{path}: cannot be written: it is {kind}; choose another output")
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise DataError(
            f"{path}: cannot be written: there is no directory {folder}; make it or choose "
            "another -o"
        )


def require_directory(path: Path | None) -> None:
    """Refuse a place where files could not be put, which need not be there yet.

    Raises:
        DataError: names what stands in the way.
    """
    if path is None:
        return
    there = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not there.is_dir():
        raise DataError(f"{there}: a file, not a directory; choose another -o")
    if not os.access(there, os.W_OK):
        raise DataError(f"{there}: cannot be written: permission denied; choose another -o")
