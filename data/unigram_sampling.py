"""Unigram sampling: another segmentation of a word each time it is seen (Kudo 2018).

A segmentation x of a word is drawn with probability P(x)^alpha / Z among all its segmentations
(arXiv 1804.10959, section 3.3, with l = infinity), where P(x) is the product of the probabilities
of its pieces: forward sums over the word's lattice, once, then backward draws, piece by piece, for
all words together in numpy.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from tfm.data.pieces import PieceModel
from tfm.data.spans import Ids, Ints, starts_of


class UnigramSampling:
    """Samples segmentations of a list of words.

    A node is a place in a word, and an edge into it a piece that ends there.

    Args:
        words: as `PieceModel.spell` gives them; none is empty.
        alpha: of the paper, above 0. The larger, the more often the best segmentation is drawn.
    """

    def __init__(self, model: PieceModel, words: Sequence[str], alpha: float) -> None:
        scores = {piece: (i, alpha * score) for piece, i, score in model.scored_pieces()}
        longest = max(map(len, scores))
        lengths = np.fromiter(map(len, words), dtype=np.int64)
        self.last = np.cumsum(lengths)  # the node behind each word, among the nodes of all
        self.first = starts_of(lengths)
        nodes = [node for word in words for node in _nodes(word, scores, longest)]
        edges = [edge for node in nodes for edge in node]
        self.pieces = np.array([piece for piece, _, _ in edges], dtype=np.int32)
        self.widths = np.array([width for _, width, _ in edges], dtype=np.int64)
        # Probabilities summed up within a node, plus its number: one search finds node and edge.
        self.sums = np.array([up_to for _, _, up_to in edges])
        self.sums += np.repeat(np.arange(1, len(nodes) + 1), [len(node) for node in nodes])

    def sample(self, words: Ids, rng: np.random.Generator) -> tuple[Ids, Ints]:
        """Return the ids of the words with the indices `words`, end to end, and their numbers."""
        counts = np.zeros(len(words), dtype=np.int64)
        drawn: list[tuple[Ints, Ids]] = []  # of each round, from the ends of the words
        order, node = np.arange(len(words)), self.last[words]
        while len(order):
            edge = np.searchsorted(self.sums, node + rng.random(len(node)), side="right")
            drawn.append((order, self.pieces[edge]))
            counts[order] += 1
            node = node - self.widths[edge]
            going = node > self.first[words[order]]
            order, node = order[going], node[going]
        ends = np.cumsum(counts)
        ids = np.empty(int(counts.sum()), dtype=np.int32)
        for i, (order, pieces) in enumerate(drawn):
            ids[ends[order] - 1 - i] = pieces
        return ids, counts


Edge = tuple[int, int, float]  # id, characters, probability of it and the edges before it


def _nodes(word: str, scores: dict[str, tuple[int, float]], longest: int) -> Iterator[list[Edge]]:
    """Yield the edges into each node of a word but the first."""
    forward = [0.0]  # log of the sum of P(x)^alpha over all x up to each node
    for end in range(1, len(word) + 1):
        found = [
            (piece[0], end - start, piece[1] + forward[start])
            for start in range(max(0, end - longest), end)
            if (piece := scores.get(word[start:end])) and forward[start] > -math.inf
        ]
        highest = max((score for _, _, score in found), default=-math.inf)
        total = sum(math.exp(score - highest) for _, _, score in found)
        forward.append(highest + math.log(total) if found else -math.inf)
        up_to = 0.0
        edges: list[Edge] = []
        for i, width, score in found:
            up_to += math.exp(score - forward[end])
            edges.append((i, width, up_to))
        if edges:
            edges[-1] = (*edges[-1][:2], 1.0)  # whatever was rounded
        yield edges
