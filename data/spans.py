"""Sequences of different lengths, end to end in one array."""

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]


def starts_of(lengths: Ints) -> Ints:
    """Return where each of the sequences begins."""
    return np.cumsum(lengths) - lengths


def spans(starts: Ints, lengths: Ints) -> Ints:
    """Return the places of sequences that begin at `starts` elsewhere, end to end."""
    return np.arange(int(lengths.sum())) + np.repeat(starts - starts_of(lengths), lengths)
