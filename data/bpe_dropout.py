"""BPE-dropout: another segmentation of a word each time it is seen (Provilkov et al. 2020).

Algorithm 1 of the paper (arXiv 1910.13267, section 3): a word begins as its characters; at each
step every possible merge is left out with probability p, and of the others the one that was learned
first is made, until none is left. Here all words take their steps together, in numpy.
"""

from collections.abc import Sequence

import numpy as np

from tfm.data.pieces import PieceModel
from tfm.data.spans import Ids, Ints, spans, starts_of

NEVER = 2**31 - 1  # the rank of two symbols that no merge joins
PLACE = 2**32  # a rank times this plus a place: the least is the leftmost of the first-learned


class BpeDropout:
    """Samples segmentations of a list of words.

    Args:
        words: as `PieceModel.spell` gives them; none is empty.
        probability: p of the paper, at least 0 and below 1. With 0 the segmentation is the
            model's own.
    """

    def __init__(self, model: PieceModel, words: Sequence[str], probability: float) -> None:
        self.probability = probability
        self.merges = MergeTable(model)
        ids = {piece: i for piece, i, _ in model.scored_pieces()}
        self.lengths = np.fromiter(map(len, words), dtype=np.int64)
        self.starts = starts_of(self.lengths)
        self.symbols = np.fromiter((ids[c] for word in words for c in word), dtype=np.int32)
        self.ranks = self.merges.ranks(self.symbols, np.roll(self.symbols, -1))
        self.ranks[self.starts + self.lengths - 1] = NEVER  # no merge crosses the border of a word

    def sample(self, words: Ids, rng: np.random.Generator) -> tuple[Ids, Ints]:
        """Return the ids of the words with the indices `words`, end to end, and their numbers."""
        lengths = self.lengths[words]
        places = spans(self.starts[words], lengths)
        symbols, ranks = self.symbols[places], self.ranks[places]
        counts, order = np.zeros_like(lengths), np.arange(len(words))
        finished: list[tuple[Ints, Ids]] = []  # places in `words`, and what their pieces are
        while len(order):
            starts = starts_of(lengths)
            dropped = rng.random(len(ranks), dtype=np.float32) < self.probability
            keys = np.where(dropped, NEVER, ranks) * PLACE + np.arange(len(ranks))
            rank, place = np.divmod(np.minimum.reduceat(keys, starts), PLACE)
            merging = rank != NEVER
            going = np.repeat(merging, lengths)
            counts[order[~merging]] = lengths[~merging]
            finished.append((order[~merging], symbols[~going]))
            order, place = order[merging], place[merging]
            symbols[place] = self.merges.joined[rank[merging]]
            going[place + 1] = False
            symbols, ranks = symbols[going], ranks[going]
            lengths = lengths[merging] - 1
            place += starts_of(lengths) - starts[merging]  # where the new symbols stand now
            self._rank_again(symbols, ranks, lengths, place)
        return _in_order(finished, counts), counts

    def _rank_again(self, symbols: Ids, ranks: Ints, lengths: Ints, place: Ints) -> None:
        """Update `ranks` to the left and to the right of the new symbols at `place`, one a word."""
        ends = np.cumsum(lengths)
        left = place[place > ends - lengths]
        ranks[left - 1] = self.merges.ranks(symbols[left - 1], symbols[left])
        last = place == ends - 1
        ranks[place[last]] = NEVER
        right = place[~last]
        ranks[right] = self.merges.ranks(symbols[right], symbols[right + 1])


class MergeTable:
    """Which two pieces make a third, and how early that was learned.

    Attributes:
        joined: the id of the piece that the merge of a rank makes.
    """

    def __init__(self, model: PieceModel) -> None:
        pieces = model.scored_pieces()
        ids = {piece: i for piece, i, _ in pieces}
        self.size = len(model)
        self.joined = np.array([i for _, i, _ in pieces], dtype=np.int32)
        found = {
            ids[piece[:cut]] * self.size + ids[piece[cut:]]: rank
            for rank, (piece, _, _) in enumerate(pieces)
            for cut in range(1, len(piece))
            if piece[:cut] in ids and piece[cut:] in ids
        }
        self.pairs = np.array(sorted(found), dtype=np.int64)
        self.rank_of_pair = np.array([found[pair] for pair in sorted(found)], dtype=np.int64)

    def ranks(self, left: Ids, right: Ids) -> Ints:
        """Return the rank of the merge of each left with each right symbol, or NEVER."""
        pairs = left.astype(np.int64) * self.size + right
        i = np.minimum(np.searchsorted(self.pairs, pairs), len(self.pairs) - 1)
        return np.where(self.pairs[i] == pairs, self.rank_of_pair[i], NEVER)


def _in_order(finished: list[tuple[Ints, Ids]], counts: Ints) -> Ids:
    """Return the pieces of all words end to end; `counts` says how many each has."""
    starts = starts_of(counts)
    pieces = np.empty(int(counts.sum()), dtype=np.int32)
    for words, ids in finished:
        pieces[spans(starts[words], counts[words])] = ids
    return pieces
