"""Corpora with columns: TSV, CSV, JSON lines, Parquet, and data sets of the Hugging Face hub.

Parquet and `hf:` go through the `datasets` library, as streams, so that nothing is copied to a
cache. TSV, CSV and JSON lines are read here by the lines of lines.py instead, because text must
arrive as it stands: the library's loaders guess types (JSON text that is a date comes back in other
words, a CSV column of numbers as numbers), and their errors name neither line nor byte.
"""

import csv
import glob
import json
import logging
import re
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tfm.data.counts import counted
from tfm.data.errors import DataError
from tfm.data.lines import read_lines, reason

Row = tuple[str, str]
SPLITS = {  # names in use on the hub
    "train": ("train",),
    "valid": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}


def read_table(path: str, kind: str, *, source: str, target: str) -> Iterator[Row]:
    """Yield (source, target) of each row of a .tsv, .csv, .jsonl or .parquet file.

    Columns bear the names of the languages, or a column `translation` holds both. A TSV file whose
    first line does not name them must have two columns: source and target.

    Raises:
        DataError: naming file, line and, for a missing column, the columns that there are.
    """
    if kind == ".parquet":
        return _read_parquet(path, source, target)
    if kind == ".tsv":
        return _read_tsv(path, source, target)
    rows = _csv_rows(path) if kind == ".csv" else _jsonl_rows(path)
    return (_pick(row, source, target, where) for where, row in rows)


def read_hub(corpus: str, *, source: str, target: str, split: str) -> Iterator[Row]:
    """Yield (source, target) of each row of `hf:NAME[:CONFIG[:SPLIT]]`; NAME may be a folder.

    Without SPLIT the one that the hub usually calls `split` is taken.

    Raises:
        DataError: in one line, also when the hub cannot be reached.
    """
    # A drive letter's colon belongs to the name.
    parts = re.fullmatch(r"hf:((?:[A-Za-z]:[\\/])?[^:]+)(?::([^:]*))?(?::(.+))?", corpus)
    if not parts:
        raise DataError(f"{corpus}: must look like hf:NAME, hf:NAME:CONFIG or hf:NAME:CONFIG:SPLIT")
    name, config, wanted = parts.groups()
    if name.startswith((".", "/", "~")) and not Path(name).expanduser().is_dir():
        raise DataError(f"{corpus}: no folder {name}")
    if Path(name).expanduser().is_dir():
        name = str(Path(name).expanduser())
    else:
        _require_hub(corpus)
    with _datasets_errors(corpus):
        from datasets import load_dataset  # type: ignore[import-untyped]

        splits = load_dataset(name, config or None, streaming=True)
        names = [wanted] if wanted else SPLITS[split]
        found = next((splits[known] for known in names if known in splits), None)
        if found is None:
            raise DataError(
                f"{corpus}: no split {' or '.join(names)}; splits: {', '.join(map(str, splits))}"
            )
        for number, row in enumerate(found, 1):
            yield _pick(row, source, target, f"{corpus}, row {number}")


def _read_parquet(path: str, source: str, target: str) -> Iterator[Row]:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {reason(error)}") from None
    with _datasets_errors(path):
        from datasets import load_dataset

        rows = load_dataset(
            "parquet", data_files=[glob.escape(path)], split="train", streaming=True
        )
        for number, row in enumerate(rows, 1):
            yield _pick(row, source, target, f"{path}, row {number}")


@contextmanager
def _datasets_errors(where: str) -> Iterator[None]:
    """Keep `datasets` quiet, and turn what it raises for bad input into one line."""
    import datasets

    for library in ("datasets", "huggingface_hub"):
        logging.getLogger(library).setLevel(logging.CRITICAL)  # errors come as exceptions
    datasets.disable_progress_bars()
    try:
        yield
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise DataError(f"{where}: {' '.join(str(error).split())}") from None


def _require_hub(corpus: str) -> None:
    """Fail at once without a network, where the library would try again for half a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return  # the library then looks into its cache only
    try:
        with urllib.request.urlopen(constants.ENDPOINT, timeout=10):
            return
    except urllib.error.HTTPError:
        return  # it answers
    except OSError as error:
        cause = getattr(error, "reason", error)  # urllib wraps what the system said
        raise DataError(
            f"{corpus}: no such folder, and {constants.ENDPOINT} cannot be reached: {cause}"
        ) from None


def _read_tsv(path: str, source: str, target: str) -> Iterator[Row]:
    """Yield the rows of a TSV file. Quotes are text: TSV has no quoting."""
    columns = 2
    picked = (0, 1)
    for number, line in enumerate(read_lines(path), 1):
        fields = line.split("\t")
        if number == 1:
            columns = len(fields)
            if source in fields and target in fields:
                picked = (fields.index(source), fields.index(target))
                continue
            if columns != 2:
                raise DataError(_missing(path, fields, source, target))
        if not line:
            fields = [""] * columns
        if len(fields) != columns:
            raise DataError(
                f"{path}, line {number}: has {counted(len(fields), 'column')}, "
                f"but the first has {columns}"
            )
        yield fields[picked[0]], fields[picked[1]]


def _csv_rows(path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    reader = csv.reader((line + "\n" for line in read_lines(path)), strict=True)
    header: list[str] | None = None
    try:
        for fields in reader:
            if header is None:
                header = fields
            elif len(fields) == len(header):
                yield f"{path}, line {reader.line_num}", dict(zip(header, fields, strict=True))
            elif fields:  # a blank line has none
                raise DataError(
                    f"{path}, line {reader.line_num}: has {counted(len(fields), 'column')}, "
                    f"but the first has {len(header)}"
                )
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: not valid CSV: {error}") from None


def _jsonl_rows(path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(read_lines(path), 1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{where}: not JSON: {error.msg} at character {error.pos + 1}"
            ) from None
        except (ValueError, RecursionError):  # Python's limits, not JSON's
            raise DataError(
                f"{where}: a number of thousands of digits, or nested too deeply; remove it"
            ) from None
        if not isinstance(row, dict):
            raise DataError(f'{where}: must be an object like {{"en": "...", "de": "..."}}')
        yield where, row


def _pick(row: Mapping[str, Any], source: str, target: str, where: str) -> Row:
    nested = row.get("translation")
    if isinstance(nested, Mapping) and not (source in row and target in row):
        row = nested
    if source not in row or target not in row:
        raise DataError(_missing(where, row, source, target))
    return _text(row[source], source, where), _text(row[target], target, where)


def _text(value: object, column: str, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(
            f"{where}: column {column} must hold text, but is {type(value).__name__} {value!r:.40}"
        )
    if not value.isascii() and re.search("[\ud800-\udfff]", value):  # JSON can escape half a pair
        raise DataError(f"{where}: column {column} holds half a surrogate pair, which is no text")
    return value


def _missing(where: str, found: Iterable[str], source: str, target: str) -> str:
    names = ", ".join(name[:40] for name in list(found)[:20])
    return (
        f"{where}: needs columns {source} and {target} (see --source, --target); columns: {names}"
    )
