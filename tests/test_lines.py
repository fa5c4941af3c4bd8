"""Promise 1 where text is read: N lines in, N lines out, for any text; and whole files only."""

import gzip
import io
import lzma
import os
import stat
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.data.errors import DataError
from tfm.data.lines import arriving_lines, atomic_writer, read_lines

NO_ENDS = ["\u2028", "\u2029", "\u0085", "\v", "\f", "\r", "\0", "\x1c", "\x1d", "\x1e", "\u00a0"]


def lines_of(data: bytes, tmp_path: Path, name: str = "text") -> list[str]:
    path = tmp_path / name
    path.write_bytes(data)
    return list(read_lines(path))


@pytest.mark.parametrize("char", NO_ENDS)
def test_only_lf_and_crlf_end_a_line(char: str, tmp_path: Path) -> None:
    text = f"a{char}b\r\n{char}c{char}\n"
    assert lines_of(text.encode(), tmp_path) == [f"a{char}b", f"{char}c{char}".removesuffix("\r")]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"\n\n", ["", ""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\n\r\nb\r\n", ["a", "", "b"]),
        (b"a\r\r\n", ["a\r"]),
        (b"a\nb\r", ["a", "b\r"]),  # at the end of the file a CR alone is text
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", ["a", "\ufeffb"]),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb\xbf\n", [""]),
    ],
)
def test_ends_and_byte_order_mark(data: bytes, expected: list[str], tmp_path: Path) -> None:
    assert lines_of(data, tmp_path) == expected


@given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))))
def test_any_text_survives(lines: list[str]) -> None:
    lines = [line.removeprefix("\ufeff").rstrip("\r") for line in lines]
    stream = io.BytesIO("".join(line + "\r\n" for line in lines).encode())
    assert [line for some in arriving_lines(stream, where="x") for line in some] == lines


def test_long_lines_arrive_whole(tmp_path: Path) -> None:
    long = "ä\u2028" * 100_000
    assert lines_of(f"{long}\nx\n{long}".encode(), tmp_path) == [long, "x", long]


def test_compressed_files(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    data = b"a\nb\r\n" * 50_000
    packers = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}
    for suffix, pack in packers.items():
        expected = ["a", "b"] * 50_000
        assert lines_of(pack(data), tmp_path, "x" + suffix) == expected, suffix
        assert lines_of(pack(data) + pack(data), tmp_path, "x" + suffix) == expected * 2, suffix
        for damaged in (pack(data)[:-5], pack(data)[: len(pack(data)) // 2], b"plain text"):
            with pytest.raises(DataError, match=f"x{suffix}: .*(damaged|cut short)"):
                lines_of(damaged, tmp_path, "x" + suffix)


def test_zstd_names_its_library_when_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(DataError, match=r"pip install zstandard"):
        lines_of(b"", tmp_path, "x.zst")


def test_bad_utf8_names_file_line_and_byte(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"text, line 2, byte 3: not UTF-8 \(0xFF\); convert"):
        lines_of(b"fine\nab\xffc\n", tmp_path)
    with pytest.raises(DataError, match=r"line 1, byte 3: not UTF-8 \(0xC3\)"):
        lines_of(b"ab\xc3", tmp_path)
    with pytest.raises(DataError, match="iconv -f UTF-16"):
        lines_of("ab\n".encode("utf-16"), tmp_path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none: cannot be read: no such file"):
        list(read_lines(tmp_path / "none"))
    with pytest.raises(DataError, match="cannot be read: is a directory"):
        list(read_lines(tmp_path))


def test_lines_are_handed_on_as_they_arrive() -> None:
    reader, writer = os.pipe()
    with open(reader, "rb") as stream, open(writer, "wb", buffering=0) as out:
        lines = arriving_lines(stream, where="pipe")
        out.write(b"one\ntwo\npart")
        assert next(lines) == ["one", "two"]  # would hang here if it waited for more
        out.write(b" of a line\r")
        out.write(b"\nlast")
        assert next(lines) == ["part of a line"]
        out.close()
        assert list(lines) == [["last"]]


def test_a_reader_never_gets_more_than_the_limit() -> None:
    stream = io.BytesIO(b"\n" * 5000)
    sizes = [len(lines) for lines in arriving_lines(stream, where="x", limit=1024)]
    assert sum(sizes) == 5000 and max(sizes) == 1024


def test_good_lines_come_before_a_bad_one_however_they_arrive() -> None:
    lines = arriving_lines(io.BytesIO(b"a\nb\n\xff\nc\n"), where="stdin")
    assert next(lines) == ["a", "b"]
    with pytest.raises(DataError, match="stdin, line 3, byte 1"):
        next(lines)


def test_input_of_any_length_takes_constant_memory() -> None:
    """Of 20 MB, no list holds more than a chunk."""
    reader, writer = os.pipe()

    def write() -> None:
        with open(writer, "wb") as out:
            for _ in range(2000):
                out.write(b"x" * 9_999 + b"\n")

    thread = threading.Thread(target=write)
    thread.start()
    with open(reader, "rb") as stream:
        longest = max(len(lines) for lines in arriving_lines(stream, where="pipe"))
    thread.join()
    assert longest < 100


def test_writer_replaces_whole_files_only(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with atomic_writer(path) as file:
        file.write("a\u2028\r\nä\n")
        assert not path.exists()
    assert path.read_bytes() == "a\u2028\r\nä\n".encode()
    with pytest.raises(KeyError), atomic_writer(path, binary=True) as file:
        file.write(b"half")
        raise KeyError
    assert path.read_bytes() == "a\u2028\r\nä\n".encode()
    assert os.listdir(tmp_path) == ["out"]


def test_writer_keeps_links_and_the_umask(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    with atomic_writer(tmp_path / "link") as file:
        file.write("x")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "x"
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("name", ["none/out", "file/out", "", "pipe"])
def test_writer_names_what_cannot_be_written(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.rglob("*"))
    wanted = "there is no directory .*; make it" if name.endswith("/out") else "choose another"
    with pytest.raises(DataError, match=f"cannot be written: .*{wanted}"):
        with atomic_writer(tmp_path / name):
            pass
    assert sorted(tmp_path.rglob("*")) == before
