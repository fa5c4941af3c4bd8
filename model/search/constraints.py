"""What is to hold for one translation alone: how it begins, which words it must or may not have."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tfm.data.errors import DataError, SettingsError
from tfm.data.phrases import ForbiddenPhrase, stands_in
from tfm.data.tokenizer import Tokenizer
from tfm.model.decoding import DecodingSettings
from tfm.model.request import Request
from tfm.model.search.beams import Beams, Hypothesis
from tfm.model.search.processors import Processor
from tfm.model.search.required import Required, missing

Bars = Callable[[Sequence[int]], Collection[int]]  # the ids so far, to those that may not follow


@dataclass(frozen=True)
class Constraints:
    """What a search is to keep to for one source, in ids.

    Attributes:
        prefix: the first ids. No rule rules them out.
        required: sequences of ids that a finished translation has, in any order.
        bars: what may not follow; None bars nothing.
    """

    prefix: tuple[int, ...] = ()
    required: tuple[tuple[int, ...], ...] = ()
    bars: Bars | None = None

    @property
    def least(self) -> int:
        """The number of ids that a translation has at least, EOS included."""
        return len(self.prefix) + sum(map(len, self.required)) + 1

    def met(self, ids: Sequence[int]) -> int:
        """Return how many of the required sequences the ids of a translation have."""
        return sum(not missing(ids, [phrase]) for phrase in self.required)


NONE = Constraints()


def constraints_of(request: Request, tokenizer: Tokenizer) -> Constraints:
    """Return what a request asks for, in the pieces of the target.

    Raises:
        DataError: for a line break, which no translation has, and for a forbidden word in what is
            to be there.
    """
    for text in (request.prefix, *request.required):
        if "\n" in text or "\r" in text:
            raise DataError(f"a translation has no line break, but {text!r} asks for one")
    words = [word.strip() for word in request.required if word.strip()]
    forbidden = [word.strip() for word in request.forbidden if word.strip()]
    prefix = request.prefix.rstrip()
    _require_no_clash({"required": words, "prefix": [prefix]}, forbidden)
    return Constraints(
        prefix=tuple(tokenizer.encode_target(prefix)) if prefix else (),
        required=tuple(dict.fromkeys(tuple(tokenizer.encode_target(word)) for word in words)),
        bars=_bars(forbidden, tokenizer) if forbidden else None,
    )


def _require_no_clash(wanted: Mapping[str, Sequence[str]], forbidden: Sequence[str]) -> None:
    for name, texts in wanted.items():
        for text in texts:
            for word in forbidden:
                if stands_in(word.encode(), text.encode()):
                    raise DataError(
                        f"`{name}` has {word!r} in {text!r}, and `forbidden` has it too"
                    )


def _bars(forbidden: Sequence[str], tokenizer: Tokenizer) -> Bars:
    index = tokenizer.target.index
    phrases = [ForbiddenPhrase(tokenizer.target.bytes_of(word), index) for word in forbidden]

    def barred(ids: Sequence[int]) -> set[int]:
        text = index.text(ids)
        return set().union(*(phrase.barred(text) for phrase in phrases))

    return barred


def longest(
    settings: DecodingSettings,
    sources: Sequence[Sequence[int]],
    constraints: Sequence[Constraints],
) -> list[int]:
    """Return the most ids that a translation of each source (ids with EOS) may have.

    What is asked for has room in any case.
    """
    pairs = zip(sources, constraints, strict=True)
    return [max(settings.longest(len(ids) - 1), asked.least) for ids, asked in pairs]


def required_of(constraints: Sequence[Constraints], settings: DecodingSettings) -> Required | None:
    """Return what the sources of a batch require, or None where that is nothing.

    Raises:
        SettingsError: where search is not by a beam that it could share out.
    """
    if not any(each.required for each in constraints):
        return None
    _require_beam_search(settings)
    return Required([each.required for each in constraints], settings.beam)


def most_met_first(hypotheses: Sequence[Hypothesis], asked: Constraints) -> list[Hypothesis]:
    """Return hypotheses with more of what is required before others; all finished ones have it."""
    return sorted(hypotheses, key=lambda each: -asked.met(each.tokens))


def require_possible(request: Request, tokenizer: Tokenizer, settings: DecodingSettings) -> None:
    """Raise what a search for `request` would raise, before others are translated with it.

    Raises:
        DataError, SettingsError: as `constraints_of` and `required_of` do.
    """
    if constraints_of(request, tokenizer).required:
        _require_beam_search(settings)


def _require_beam_search(settings: DecodingSettings) -> None:
    if settings.sampling or settings.beam_groups > 1:
        raise SettingsError("required words need beam search, without sampling and groups")


class Prefixes:
    """The rule that translations begin as they are told to.

    Args:
        prefixes: of each source, ids; empty where it is free.
    """

    def __init__(self, prefixes: Sequence[Sequence[int]], device: torch.device) -> None:
        self.longest = max(map(len, prefixes))
        rows = [[*ids, *[0] * (self.longest - len(ids))] for ids in prefixes]
        self.ids = torch.tensor(rows, device=device)
        self.lengths = torch.tensor([len(ids) for ids in prefixes], device=device)
        self._kept = torch.empty(0)

    def remember(self, next_ids: Tensor, beams: Beams) -> Tensor:
        """Note what the next id of each prefix counts, before rules may rule it out."""
        if beams.length < self.longest:
            self._kept = next_ids.gather(2, self._next(beams, next_ids))
        return next_ids

    def force(self, next_ids: Tensor, beams: Beams) -> Tensor:
        """Rule out all ids but the next one of the prefix, where there is one."""
        if beams.length >= self.longest:
            return next_ids
        forced = (self.lengths[beams.sentences] > beams.length)[:, None, None]
        ids = self._next(beams, next_ids)
        kept = torch.where(forced, self._kept, next_ids.gather(2, ids))
        return next_ids.masked_fill_(forced, -torch.inf).scatter_(2, ids, kept)

    def _next(self, beams: Beams, next_ids: Tensor) -> Tensor:
        ids = self.ids[beams.sentences, beams.length]
        return ids[:, None, None].expand(-1, next_ids.shape[1], 1)


def bar(bars: Sequence[Bars | None]) -> Processor:
    """Return the rule that rules out what `bars`, one of each source, name after each past."""

    def process(next_ids: Tensor, beams: Beams) -> Tensor:
        places: list[tuple[int, int, int]] = []
        for b, source in enumerate(beams.sentences.tolist()):
            barred = bars[source]
            if barred is not None:
                for n, ids in enumerate(beams.tokens[b, :, 1:].tolist()):
                    places += [(b, n, i) for i in barred(ids)]
        if places:
            next_ids[tuple(torch.tensor(places, device=next_ids.device).T)] = -torch.inf
        return next_ids

    return process


def constrained(
    rules: Sequence[Processor], constraints: Sequence[Constraints], device: torch.device
) -> list[Processor]:
    """Return `rules` with those of a batch, of whose sources each has its constraints."""
    found = list(rules)
    if any(each.bars for each in constraints):
        found.append(bar([each.bars for each in constraints]))
    if any(each.prefix for each in constraints):
        prefixes = Prefixes([each.prefix for each in constraints], device)
        found = [prefixes.remember, *found, prefixes.force]
    return found
