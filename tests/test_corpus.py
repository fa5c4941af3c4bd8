"""Every form of a corpus gives the same text, character for character, or an error of one line."""

import csv
import gzip
import io
import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from tfm.data.corpus import Pair, fingerprint, read_pairs
from tfm.data.errors import DataError

# What loaders like to change: what looks like nothing, a number, a date; quotes; odd characters.
PAIRS = [
    Pair("NA", "null"),
    Pair("None", "nan"),
    Pair("1.0", "1e5"),
    Pair("007", "true"),
    Pair("2020-01-01", "2020-01-01T00:00:00Z"),
    Pair(" lead", "trail "),
    Pair('say "hi"', "it's 'so'"),
    Pair('"all quoted"', "a,b;c"),
    Pair("u\u2028v\u0085w", "x\vy\fz"),
    Pair("lone\rCR", "nul\0 and\x1cmore"),
    Pair("", "only one side"),
    Pair("</s> \u2581", "👍 é e\u0301"),
]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(corpus: str, source: str = "en", target: str = "de", split: str = "train") -> list[Pair]:
    return list(read_pairs(corpus, source=source, target=target, split=split))  # type: ignore[arg-type]


def write(path: str, text: str) -> str:
    Path(path).write_text(text, encoding="utf-8", newline="")
    return path


def write_parquet(path: str, columns: dict[str, list[object]]) -> str:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def as_tsv(header: str = "") -> str:
    return write("x.tsv", header + "".join(f"{a}\t{b}\n" for a, b in PAIRS))


def as_csv() -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["id", "de", "en"])
    writer.writerows([i, pair.target, pair.source] for i, pair in enumerate(PAIRS))
    return write("x.csv", "\ufeff" + text.getvalue())


def as_jsonl() -> str:
    return write("x.jsonl", "".join(json.dumps({"en": a, "de": b}) + "\n" for a, b in PAIRS))


def as_nested_jsonl() -> str:
    rows = [{"id": 1, "translation": pair._asdict()} for pair in PAIRS]
    return write("n.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n\n" for row in rows))


def as_parquet() -> str:
    columns = {"id": list(range(len(PAIRS))), "en": [p.source for p in PAIRS]}
    return write_parquet("x [1].parquet", columns | {"de": [p.target for p in PAIRS]})  # type: ignore[operator]


def as_folder() -> str:
    Path("hub").mkdir()
    nested = [{"en": a, "de": b} for a, b in PAIRS]
    write_parquet("hub/train-00000.parquet", {"translation": nested})  # type: ignore[dict-item]
    write_parquet("hub/validation-00000.parquet", {"translation": [{"en": "v", "de": "w"}]})
    return "hf:./hub"


def as_two_files() -> str:
    write("multi.2016.en", "".join(pair.source + "\n" for pair in PAIRS))
    write("multi.2016.de", "\ufeff" + "".join(pair.target + "\r\n" for pair in PAIRS))
    return "multi.2016"


FORMS = [as_tsv, as_csv, as_jsonl, as_parquet, as_folder, as_two_files]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_every_form_gives_the_same_text(form) -> None:  # type: ignore[no-untyped-def]
    assert read(form()) == PAIRS


def test_columns_are_found_by_name() -> None:
    assert read(as_tsv("en\tde\n")) == PAIRS
    assert read(as_tsv("de\ten\n")) == [Pair(b, a) for a, b in PAIRS]
    assert read(as_csv(), "de", "en") == [Pair(b, a) for a, b in PAIRS]
    assert read(as_nested_jsonl(), "source", "target") == PAIRS
    assert read(as_csv(), "id", "de")[3] == Pair("3", "true")


def test_compressed_tables_and_texts() -> None:
    Path("x.tsv.gz").write_bytes(gzip.compress(Path(as_tsv()).read_bytes()))
    assert read("x.tsv.gz") == PAIRS
    prefix = as_two_files()
    Path("multi.2016.en.gz").write_bytes(gzip.compress(Path("multi.2016.en").read_bytes()))
    Path("multi.2016.en").unlink()
    assert read(prefix) == PAIRS


def test_splits_of_a_hub_data_set() -> None:
    corpus = as_folder()
    assert read(corpus, split="valid") == [Pair("v", "w")]
    assert read(f"{corpus}::validation", split="train") == [Pair("v", "w")]
    assert read(f"hf:{Path('hub').resolve()}") == PAIRS
    with pytest.raises(DataError, match="no split test; splits: train, validation"):
        read(corpus, split="test")
    with pytest.raises(DataError, match="no split nope"):
        read(f"{corpus}::nope")
    with pytest.raises(DataError, match="nope.*not found.*default"):
        read(f"{corpus}:nope")


def test_columns_that_are_missing() -> None:
    for corpus in (as_csv(), as_jsonl(), as_parquet(), as_folder()):
        with pytest.raises(DataError, match="needs columns en and fr .*; columns: .*de"):
            read(corpus, target="fr")
    with pytest.raises(DataError, match="needs columns en and de .*; columns: a, b, c"):
        read(write("x.tsv", "a\tb\tc\n"))
    with pytest.raises(DataError, match="x.jsonl, line 2: needs columns .*; columns: en, x"):
        read(write("x.jsonl", '{"en":"a","de":"b"}\n{"en":"a","x":"b"}\n'))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.tsv", "a\tb\nc\n", "x.tsv, line 2: has 1 column, but the first has 2"),
        ("x.csv", "en,de\n1,2,3\n", "x.csv, line 2: has 3 columns, but the first has 2"),
        ("x.csv", 'en,de\n"open,b\n', "x.csv, line 2: not valid CSV"),
        ("x.jsonl", "{}\n[1]\n", "x.jsonl, line 1: needs columns"),
        ("x.jsonl", '{"en": "a"', "x.jsonl, line 1: not JSON: .* at character 11"),
        ("x.jsonl", "[1]", "x.jsonl, line 1: must be an object"),
        (
            "x.jsonl",
            '{"en": 1, "de": "b"}',
            "x.jsonl, line 1: column en must hold text, but is int",
        ),
        ("x.jsonl", '{"en": "\\ud800", "de": "b"}', "line 1: column en holds half a surrogate"),
        ("x.jsonl", '{"en": "a", "de": "b", "x": %s}' % ("9" * 5000), "line 1: .*digits"),
        ("x.jsonl", "[" * 5000, "line 1: .*nested too deeply"),
        ("x.parquet", "no", r"x.parquet: "),
    ],
)
def test_damaged_tables(name: str, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        read(write(name, text))
    assert "\n" not in str(error.value)


def test_missing_values_are_blank() -> None:
    expected = [Pair("a", ""), Pair("", "")]
    rows = '{"en": "a", "de": null}\n{"en": null, "de": null}\n'
    assert read(write("x.jsonl", rows)) == expected
    assert read(write_parquet("x.parquet", {"en": ["a", None], "de": ["", None]})) == expected
    assert read(write("x.tsv", "a\t\n\n")) == expected


def test_bad_utf8_is_found_in_every_text_form() -> None:
    for name in ("x.en", "x.tsv", "x.csv", "x.jsonl"):
        Path(name).write_bytes(b"en\tde\nb\xff\tc\n" if name == "x.tsv" else b"en,de\nb\xff,c\n")
        write("x.de", "a\nb\n")
        with pytest.raises(DataError, match=f"{name}, line (1|2)|not UTF-8"):
            read("x" if name == "x.en" else name)


def test_unequal_line_counts_are_both_named() -> None:
    write("x.en", "1\n2\n3\n")
    for german, count in (("1\n", 1), ("1\n2\n3\n4\n5\n", 5)):
        write("x.de", german)
        with pytest.raises(DataError, match=f"x.en has 3 lines but x.de has {count}"):
            read("x")


def test_one_of_the_two_files_for_a_corpus_is_told_the_prefix(tmp_path: Path) -> None:
    for language in ("en", "de"):
        file = tmp_path / f"set.{language}"
        file.write_text("A dog.\n")
        with pytest.raises(DataError, match=f"did you mean {re.escape(str(tmp_path / 'set'))}\\?"):
            list(read_pairs(str(file), source="en", target="de", split="train"))
    (tmp_path / "notes.txt").write_text("A dog.\n")
    with pytest.raises(DataError) as refusal:
        list(read_pairs(str(tmp_path / "notes.txt"), source="en", target="de", split="train"))
    assert "did you mean" not in str(refusal.value)


def test_files_that_do_not_exist_are_named() -> None:
    with pytest.raises(DataError, match=r"no file none.en \(nor .gz, .xz, .zst of it\)"):
        read("none")
    write("x.en", "a\n")
    with pytest.raises(DataError, match="no file x.de"):
        read("x")
    for name in ("none.tsv", "none.csv", "none.jsonl", "none.parquet"):
        with pytest.raises(DataError, match=f"{name}: cannot be read: no such file"):
            read(name)
    with pytest.raises(DataError, match="no folder ./none"):
        read("hf:./none")


@pytest.mark.parametrize("name", ["x.tmx", "x.po", "x.xliff", "x.XLF"])
def test_formats_of_later_are_refused(name: str) -> None:
    with pytest.raises(DataError, match="not read yet; convert it to TSV"):
        read(name)


@pytest.mark.parametrize("prefix", [r"C:\data\train", "a:b", "hfx", "builtins", "x.tsv.d/y"])
def test_colons_and_look_alikes_are_file_names(prefix: str) -> None:
    Path(prefix).parent.mkdir(exist_ok=True)
    write(f"{prefix}.en", "a\n")
    write(f"{prefix}.de", "b\n")
    assert read(prefix) == [Pair("a", "b")]


def test_an_unreachable_hub_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(DataError, match="hf:some/set: .*127.0.0.1:9 cannot be reached: .*refused"):
        read("hf:some/set")


def test_nothing_is_copied_to_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    cache = tmp_path / "cache"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(cache))
    read(as_folder())
    read(as_parquet())
    written = [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size]
    assert written == []


def test_two_files_are_streamed() -> None:
    """The first pair comes from pipes that have no end yet."""
    writers = []
    for language in ("en", "de"):
        os.mkfifo(f"p.{language}")
        writers.append(os.open(f"p.{language}", os.O_RDWR))
        os.write(writers[-1], f"{language} 1\n{language} 2".encode())
    pairs = read_pairs("p", source="en", target="de", split="train")
    assert next(pairs) == Pair("en 1", "de 1")
    for writer in writers:
        os.close(writer)


class Generated(NamedTuple):
    source: str
    target: str
    alignment: tuple[tuple[int, int], ...] = ()


@pytest.fixture
def builtin(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int | None]]:
    """Put a generator of two pairs in the place of the built-in corpus; return its calls."""
    calls: list[tuple[str, int | None]] = []

    def builtin_pairs(split: str, count: int | None = None) -> list[Generated]:
        calls.append((split, count))
        return [Generated("a dog", "ein Hund"), Generated("a cat", "eine Katze")]

    module = ModuleType("tfm.data.builtin")
    module.builtin_pairs = builtin_pairs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tfm.data.builtin", module)
    return calls


def test_builtin_both_ways(builtin: list[tuple[str, int | None]]) -> None:
    assert read("builtin")[0] == Pair("a dog", "ein Hund")
    assert read("builtin:2", "de", "en", "valid")[1] == Pair("eine Katze", "a cat")
    assert builtin == [("train", None), ("valid", 2)]
    with pytest.raises(DataError, match="has the languages en and de, but en and fr"):
        read("builtin", "en", "fr")
    for count in ("0", "-1", "x", "", "1" * 5000):
        with pytest.raises(DataError, match="must be a whole number above 0"):
            read(f"builtin:{count}")


def test_fingerprint_depends_on_text_and_order_alone() -> None:
    a, b = Pair("a", "b"), Pair("c", "d")
    assert fingerprint([a, b]) == fingerprint(iter([a, b]))
    others = [[b, a], [a], [], [Pair("ab", ""), b], [Pair("a", "b\n"), b], [Pair("b", "a"), b]]
    assert len({fingerprint(pairs) for pairs in [[a, b], *others]}) == 7
