"""Several networks as one: the probability of an id is the mean of what each of them says.

    P(id) = 1/K sum_k P_k(id)

The mean of distributions is a distribution again, so that log P, scores and perplexity of an
ensemble mean what those of one network do, and may be compared with them. (The other custom, the
mean of log probabilities, is none until it is normalised anew, and one network that finds an id
impossible forbids it to all.) It is what fairseq does: Ott et al. 2019, `EnsembleModel`.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tfm.data.errors import CheckpointError
from tfm.model.checkpoint import TOKENIZER, LoadedModel
from tfm.model.search.beams import Beams
from tfm.model.search.prepared import Prepared
from tfm.model.search.scorer import NetworkScorer, Scorer


class Ensemble:
    """Networks of one vocabulary that search asks together, or a single one.

    Args:
        members: one or more, all on the same device. One that stands there twice counts twice.
    """

    def __init__(self, members: Sequence[Prepared]) -> None:
        self.members = members
        self.device = members[0].device

    def start(self, sources: Sequence[Sequence[int]]) -> Scorer:
        """Return the state of a batch of sources, ids with EOS, before its first step."""
        scorers = [NetworkScorer(member, sources) for member in self.members]
        return scorers[0] if len(scorers) == 1 else EnsembleScorer(scorers)


class EnsembleScorer:
    """Scorers of the same sources that answer with the mean of their probabilities."""

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        self.scorers = scorers
        self.device = scorers[0].device

    def log_probabilities(self, beams: Beams) -> Tensor:
        """Ask each, and return the log of the mean."""
        return log_of_mean([scorer.log_probabilities(beams) for scorer in self.scorers])

    def keep(self, sentences: Tensor) -> None:
        """Drop the source of all other sentences."""
        for scorer in self.scorers:
            scorer.keep(sentences)

    def reorder(self, rows: Tensor) -> None:
        """Let each row continue the past of another."""
        for scorer in self.scorers:
            scorer.reorder(rows)


def log_of_mean(log_probabilities: Sequence[Tensor]) -> Tensor:
    """Return the log of the mean probability, in the place of the first; all are overwritten.

    Of equal ones it is exactly their own: exp(0) is 1, and log(1) is 0.
    """
    mean, *others = log_probabilities
    largest = mean.clone()
    for other in others:
        torch.maximum(largest, other, out=largest)
    largest.clamp_(min=torch.finfo(largest.dtype).min)  # -inf less -inf would be no number
    mean.sub_(largest).exp_()
    for other in others:
        mean.add_(other.sub_(largest).exp_())
    return mean.div_(len(log_probabilities)).log_().add_(largest)


def require_same_vocabulary(
    path: Path, loaded: LoadedModel, other_path: Path, other: LoadedModel
) -> None:
    """Refuse two model directories that cannot decide together on a next piece.

    Raises:
        CheckpointError: if their tokenizers or languages differ; both places are named.
    """
    if loaded.tokenizer.fingerprint != other.tokenizer.fingerprint:
        raise CheckpointError(
            f"{_tokenizer_file(other_path, other)}: another vocabulary than that of "
            f"{_tokenizer_file(path, loaded)}; train the models of an ensemble with the same "
            "--tokenizer FILE"
        )
    own, its = loaded.settings.data, other.settings.data
    if (own.source, own.target) != (its.source, its.target):
        raise CheckpointError(
            f"{other_path}: translates {its.source} to {its.target}, but {path} {own.source} to "
            f"{own.target}; an ensemble has one direction"
        )


def _tokenizer_file(directory: Path, loaded: LoadedModel) -> Path:
    return directory / (TOKENIZER if loaded.tokenizer.joint else "tokenizer.*.model")
