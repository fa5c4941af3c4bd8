"""The file of the pairs that training has made itself, for `diversification`: a corpus like any."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tfm.data.batching import EncodedCorpus, encode_corpus
from tfm.data.corpus import Pair, fingerprint, read_pairs
from tfm.data.errors import CheckpointError, DataError
from tfm.data.lines import atomic_writer
from tfm.data.settings import DataSettings
from tfm.data.tokenizer import Tokenizer


class MadePairs(NamedTuple):
    """What was made, as ids, and the SHA-256 of its text."""

    corpus: EncodedCorpus
    fingerprint: str


def write_made_pairs(path: Path, pairs: Iterable[Pair], settings: DataSettings) -> None:
    """Write the pairs as TSV, whole or not at all."""
    with atomic_writer(path) as file:
        for pair in (Pair(settings.source, settings.target), *pairs):
            # Tabs and line breaks, if a tokenizer has any, would look like the end of a text.
            file.write("\t".join(" ".join(text.split()) for text in pair) + "\n")


def read_made_pairs(path: Path, tokenizer: Tokenizer, settings: DataSettings) -> MadePairs:
    """Read and encode what `write_made_pairs` wrote.

    Raises:
        DataError: if it cannot be read, or there is nothing in it to learn from.
    """
    source, target = settings.source, settings.target
    pairs = list(read_pairs(str(path), source=source, target=target, split="train"))
    try:
        return MadePairs(encode_corpus(pairs, tokenizer, settings), fingerprint(pairs))
    except DataError as error:
        raise DataError(f"{path}: {error}; give the phase before more steps") from None


def same_made_pairs(
    path: Path, expected: str, tokenizer: Tokenizer, settings: DataSettings
) -> EncodedCorpus:
    """Read the pairs whose fingerprint is `expected`.

    Raises:
        CheckpointError: if they are lost or others.
    """
    remedy = "put back the file that the run has written, or choose another -o"
    try:
        made = read_made_pairs(path, tokenizer, settings)
    except DataError as error:
        raise CheckpointError(f"{error}; {remedy}") from None
    if made.fingerprint != expected:
        raise CheckpointError(f"{path}: is not what training has learned from so far; {remedy}")
    return made.corpus
