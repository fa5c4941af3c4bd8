"""A corpus is one string; this file turns it into a stream of sentence pairs.

PREFIX                       two files PREFIX.en and PREFIX.de, or .gz, .xz, .zst of them
FILE.tsv|csv|jsonl|parquet   columns named by the languages
hf:NAME[:CONFIG[:SPLIT]]     a data set of the Hugging Face hub, or a local folder
builtin[:N]                  the corpus that tfm generates
builtin-documents[:N[:S]]    documents of S sentences from it, whose last ones need the first
                             ones; S is a number or two, as in 3-8
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from tfm.data.counts import counted
from tfm.data.errors import DataError
from tfm.data.lines import COMPRESSED, read_lines

if TYPE_CHECKING:
    from tfm.data.builtin import BuiltinPair

Split = Literal["train", "valid", "test"]


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


def read_pairs(corpus: str, *, source: str, target: str, split: Split) -> Iterator[Pair]:
    """Yield the pairs of `corpus` in its order, blank ones included, without holding it in memory.

    Args:
        corpus: one of the forms that the head of this file lists.
        source: the language of the source side, as in `en`.
        target: the language of the target side, as in `de`.
        split: which part of `builtin`, or of an `hf:` corpus that names no split.

    Raises:
        DataError: for a corpus that is missing, cannot be read, or has unequal sides.
    """
    if builtin := re.fullmatch(r"(builtin(?:-documents)?)(?::(.*))?", corpus):
        return _read_builtin(builtin[1], builtin[2], source, target, split)
    if corpus.startswith("hf:"):
        from tfm.data.tables import read_hub

        return _pairs(read_hub(corpus, source=source, target=target, split=split))
    suffixes = [suffix for suffix in Path(corpus).suffixes if suffix not in COMPRESSED]
    kind = suffixes[-1].lower() if suffixes else ""
    if kind in (".tmx", ".po", ".xliff", ".xlf"):
        raise DataError(
            f"{corpus}: {kind[1:].upper()} files are not read yet; convert it to TSV: "
            "one pair a line, a tab between source and target"
        )
    if kind in (".tsv", ".csv", ".jsonl", ".parquet"):
        from tfm.data.tables import read_table

        return _pairs(read_table(corpus, kind, source=source, target=target))
    return _read_two_files(corpus, source, target)


def files_of(corpus: str, *, source: str, target: str) -> list[Path]:
    """Return the files that a corpus may be read from, whether or not they are there."""
    sides = [f"{corpus}.{language}" for language in (source, target)]
    return [Path(name + suffix) for name in (corpus, *sides) for suffix in ("", *COMPRESSED)]


def fingerprint(pairs: Iterable[Pair]) -> str:
    """Return the SHA-256 of the text of a corpus, order included, in hexadecimal."""
    digest = hashlib.sha256()
    for pair in pairs:
        for text in pair:
            data = text.encode()
            digest.update(b"%d:" % len(data))  # so that no two corpora give the same bytes
            digest.update(data)
    return digest.hexdigest()


def _pairs(rows: Iterable[tuple[str, str]]) -> Iterator[Pair]:
    return (Pair(*row) for row in rows)


def _read_builtin(
    name: str, numbers: str | None, source: str, target: str, split: Split
) -> Iterator[Pair]:
    if (source, target) not in (("en", "de"), ("de", "en")):
        raise DataError(
            f"{name}: has the languages en and de, but {source} and {target} are asked for"
        )
    corpus = f"{name}:{numbers}"
    parts = [] if numbers is None else numbers.split(":")
    if len(parts) > (1 if name == "builtin" else 2):
        raise DataError(f"{corpus}: too many numbers; builtin:N, builtin-documents:N:S")
    wanted = [_count(corpus, part) for part in parts[:1]]
    wanted += [_count(corpus, part) for size in parts[1:] for part in size.split("-", 1)]
    for pair in _draw(name, split, wanted):
        yield Pair(pair.source, pair.target) if source == "en" else Pair(pair.target, pair.source)


def _draw(name: str, split: Split, wanted: list[int]) -> Iterable["BuiltinPair"]:
    if name == "builtin":
        from tfm.data.builtin import builtin_pairs

        return builtin_pairs(split, *wanted)
    from tfm.data.builtin.documents import builtin_documents

    count, sizes = wanted[:1], wanted[1:]
    options = dict(zip(("sentences", "at_most"), sizes, strict=False))
    return [document.pair for document in builtin_documents(split, *count, **options)]


def _count(corpus: str, written: str) -> int:
    """Read a number of pairs or sentences."""
    # Python refuses to convert thousands of digits.
    digits = written.isascii() and written.isdigit() and len(written) < 20
    if not (digits and int(written)):
        raise DataError(f"{corpus}: the number of pairs must be a whole number above 0")
    return int(written)


def _read_two_files(prefix: str, source: str, target: str) -> Iterator[Pair]:
    paths = [_side(prefix, source), _side(prefix, target)]
    counts = [0, 0]
    for lines in zip_longest(*map(read_lines, paths)):
        for side, line in enumerate(lines):
            counts[side] += line is not None
        if counts[0] == counts[1]:
            yield Pair(*lines)
    if counts[0] != counts[1]:
        raise DataError(
            f"{paths[0]} has {counted(counts[0], 'line')} but {paths[1]} has {counts[1]:,}: "
            "line n of one must be the translation of line n of the other"
        )


def _side(prefix: str, language: str) -> Path:
    """Return the file of one language, preferring the uncompressed one."""
    names = [f"{prefix}.{language}{suffix}" for suffix in ("", *COMPRESSED)]
    for name in names:
        if Path(name).exists():
            return Path(name)
    hint = ""
    if meant := re.fullmatch(r"(.+)\.\w+(\.gz|\.xz|\.zst)?", prefix):
        if any(Path(f"{meant[1]}.{language}{suffix}").exists() for suffix in ("", *COMPRESSED)):
            hint = f"; did you mean {meant[1]}?"
    raise DataError(
        f"corpus {prefix}: no file {names[0]} (nor {', '.join(COMPRESSED)} of it){hint}; a corpus "
        "is two files PREFIX.en and PREFIX.de, FILE.tsv|csv|jsonl|parquet, hf:NAME or builtin"
    )
