"""Text files as lines, and files that are replaced whole or not at all.

A line ends at LF or CRLF and nowhere else: U+2028, U+0085, VT, FF, NUL and a lone CR are text. That
is why files are read as bytes: Python's text mode and `str.splitlines` break lines at more places.
"""

import errno
import gzip
import lzma
import os
import secrets
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar

from tfm.data.errors import DataError
from tfm.data.places import require_replaceable

Line = TypeVar("Line")

CHUNK = 1 << 16  # bytes asked for at a time: what a Linux pipe holds
COMPRESSED = (".gz", ".xz", ".zst")  # suffixes that are decompressed
TEMPORARY = ".tfm-*.tmp"  # names of files that `atomic_writer` has not finished, or a kill has left
_BOM = b"\xef\xbb\xbf"  # the byte order mark U+FEFF


def read_lines(path: Path | str) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file without their ends; `-` is stdin.

    Files ending in .gz, .xz and .zst are decompressed. A byte order mark at the start is dropped,
    and a last line without a line end counts.

    Raises:
        DataError: for a file that cannot be read, is damaged, or is not UTF-8 (file, line, byte).
    """
    where = "stdin" if str(path) == "-" else str(path)
    return read_parsed(path, lambda raw, number: decode_line(raw, where, number))


def read_parsed(path: Path | str, parse: Callable[[bytes, int], Line]) -> Iterator[Line]:
    """Yield what `parse` makes of each line of a file and its number, counted from 1.

    Raises:
        DataError: for a file that cannot be read or is damaged, and what `parse` raises.
    """
    if str(path) == "-":
        for lines in arriving_parsed(sys.stdin.buffer, parse):
            yield from lines
        return
    path = Path(path)
    try:
        with _open(path) as read:
            for lines in _lines(read, parse, limit=CHUNK):  # a chunk has no more lines
                yield from lines
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path}: damaged or cut short: {error}; fetch it again") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {reason(error)}") from None


def arriving_lines(stream: BinaryIO, *, where: str, limit: int = 1024) -> Iterator[list[str]]:
    """Yield lists of 1 to `limit` lines as they arrive on a pipe, in constant memory.

    As soon as one complete line is there it is handed on; the next read happens only when the
    caller comes back for more. `where` is what errors call the stream.

    Raises:
        DataError: for bad UTF-8, after the good lines before it have been yielded.
    """
    return arriving_parsed(stream, lambda raw, number: decode_line(raw, where, number), limit=limit)


def arriving_parsed(
    stream: BinaryIO, parse: Callable[[bytes, int], Line], *, limit: int = 1024
) -> Iterator[list[Line]]:
    """Yield what `parse` makes of lines and their numbers, as `arriving_lines` yields lines."""
    # read1 takes what has arrived, in one system call; an unbuffered stream's read does the same.
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    return _lines(read, parse, limit=limit)


def decode_line(raw: bytes, where: str, number: int) -> str:
    """Return the text of a line, the first without a byte order mark.

    Raises:
        DataError: for bad UTF-8, with `where` and `number` as its place.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        utf16 = number == 1 and raw[:2] in (b"\xff\xfe", b"\xfe\xff")
        remedy = f"iconv -f {'UTF-16' if utf16 else 'LATIN1'} -t UTF-8"
        raise DataError(
            f"{where}, line {number}, byte {error.start + 1}: not UTF-8 (0x{byte:02X}); "
            f"convert it with, for instance, `{remedy}`"
        ) from None
    return text.removeprefix("\ufeff") if number == 1 else text


def reason(error: OSError) -> str:
    """Return why the system refused, in words that fit into a one-line message."""
    if isinstance(error, FileNotFoundError):
        return "no such file or directory"
    return (error.strerror or str(error)).lower()


def _lines(
    read: Callable[[int], bytes], parse: Callable[[bytes, int], Line], *, limit: int
) -> Iterator[list[Line]]:
    number = 0
    for raw in _raw_lines(read):
        for start in range(0, len(raw), limit):
            lines: list[Line] = []
            try:
                for line in raw[start : start + limit]:
                    number += 1
                    lines.append(parse(line, number))
            except DataError:
                if lines:  # the outcome must not depend on how the bytes arrived
                    yield lines
                raise
            yield lines


def _raw_lines(read: Callable[[int], bytes]) -> Iterator[list[bytes]]:
    """Yield lists of complete lines, one list for each read that completed any."""
    pending: list[bytes] = []  # pieces of a line whose end has not come yet
    first = True  # no line has ended yet
    while chunk := read(CHUNK):
        pending.append(chunk)
        if b"\n" not in chunk:
            continue
        *lines, rest = b"".join(pending).split(b"\n")
        pending, first = [rest], False
        yield [line.removesuffix(b"\r") for line in lines]
    last = b"".join(pending)  # if it ends in CR, that is text: no LF follows
    if last and not (first and last == _BOM):
        yield [last]


@contextmanager
def _open(path: Path) -> Iterator[Callable[[int], bytes]]:
    """Open a file by its suffix, and give the function that reads its decompressed bytes."""
    if path.suffix == ".gz":
        with gzip.open(path) as file:
            yield file.read
    elif path.suffix == ".xz":
        with lzma.open(path) as file:
            yield file.read
    elif path.suffix == ".zst":
        with path.open("rb") as file:
            chunks = _zstd_chunks(file, path)
            yield lambda size: next(chunks, b"")
    else:
        with path.open("rb", buffering=0) as file:
            yield file.read


def _zstd_chunks(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """Yield decompressed bytes; the library's own reader takes a cut file for a whole one."""
    try:
        import zstandard
    except ImportError:
        raise DataError(f"{path}: reading .zst needs zstandard: pip install zstandard") from None
    frame = zstandard.ZstdDecompressor().decompressobj()
    inside = False
    try:
        while chunk := file.read(CHUNK):
            while chunk:
                if data := frame.decompress(chunk):
                    yield data
                inside, chunk = not frame.eof, frame.unused_data
                if not inside:  # frames may follow one another, as in gzip
                    frame = zstandard.ZstdDecompressor().decompressobj()
    except zstandard.ZstdError as error:
        raise EOFError(str(error)) from None
    if inside:
        raise EOFError("the last frame has no end")


@contextmanager
def text_output(path: Path | None) -> Iterator[IO[str]]:
    """Open the place where results go, as UTF-8; None and `-` are stdout.

    A file is replaced only when the block ends well (`atomic_writer`). A pipe or a device, such as
    /dev/null, gets the text as it comes.

    Raises:
        DataError: where `path` cannot be written, with the reason.
    """
    if path is None or str(path) == "-":
        yield sys.stdout
    elif path.is_fifo() or path.is_char_device():  # asked of a link too: /dev/stdout is one
        with writing(path), path.open("w", encoding="utf-8", newline="") as file:
            yield file
    else:
        with atomic_writer(path) as file:
            yield file


@contextmanager
def atomic_writer(path: Path, *, binary: bool = False) -> Iterator[IO[Any]]:
    """Open a file that takes the place of `path` only when the block ends without an exception.

    It is written under a temporary name beside `path`, synced and renamed: after a crash there is
    the old file or the new one, never a half. Text is UTF-8 and line ends are written as given.

    Raises:
        DataError: where `path` cannot be written, with the reason. Nothing is left behind.
    """
    path = Path(os.path.realpath(path))  # a link keeps pointing to the file that is replaced
    require_replaceable(path)
    unique = f"{os.getpid()}-{secrets.token_hex(4)}"
    temporary = path.with_name(TEMPORARY.replace("*", unique))
    try:
        with writing(path, opened=temporary):
            with _create(temporary, binary) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    finally:
        with suppress(OSError):  # it was renamed, or could not be made
            temporary.unlink()


@contextmanager
def writing(path: Path, *, opened: Path | None = None) -> Iterator[None]:
    """Report errors in writing `opened`, which is `path` if not given, as those of `path`.

    Raises:
        DataError: names `path`, the reason and what to do.
    """
    try:
        yield
    except OSError as error:
        # Only what concerns this file: an error of another file named itself, a pipe's has EPIPE,
        # and that of a closed standard stream, which the block reads, EBADF.
        ours = error.filename in (None, str(opened or path))
        if ours and error.errno not in (errno.EPIPE, errno.EBADF):
            raise DataError(
                f"{path}: cannot be written: {reason(error)}; free space or choose another -o"
            ) from None
        raise


def _create(path: Path, binary: bool) -> IO[Any]:
    return path.open("xb") if binary else path.open("x", encoding="utf-8", newline="")
