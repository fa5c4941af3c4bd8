"""Diverse beam search is the algorithm of its paper, and its first group a plain search."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from tfm.data.errors import SettingsError
from tfm.data.tokenizer import BOS, EOS, PAD, UNK
from tfm.model.search.beam import Hypothesis, beam_search, force_score
from tfm.model.settings import DecodingSettings

if TYPE_CHECKING:
    from conftest import Following, Tiny

SPECIAL = (PAD, UNK, BOS)


def definition(
    following: "Following", source: Sequence[int], options: DecodingSettings
) -> list[tuple[list[int], float, bool]]:
    """Search group by group as the paper says, always up to the longest; -inf bars an id."""
    width = options.beam // options.beam_groups
    live = [[(0.0, list[int]())] for _ in range(options.beam_groups)]
    done: list[list[tuple[float, list[int]]]] = [[] for _ in live]
    longest = options.longest(len(source) - 1)
    for n in range(1, longest + 1):
        chosen: Counter[int] = Counter()
        for group, hypotheses in enumerate(live):
            extensions = []
            for beam, (total, ids) in enumerate(hypotheses):
                for token, p in enumerate(following(source, ids)):
                    if p > -math.inf:
                        rank = -(total + p - options.diversity * chosen[token])
                        extensions.append((rank, beam, token, total + p, ids))
            extensions.sort(key=lambda extension: extension[:3])
            for _, _, token, total, ids in extensions[:width]:
                if token == EOS and not (width == 1 and done[group]):
                    done[group].append((total / n**options.length_penalty, ids))
            going = [e for e in extensions if e[2] != EOS][:width]
            live[group] = [(total, [*ids, token]) for _, _, token, total, ids in going]
            chosen.update(token for _, _, token, _, _ in going)
    found: dict[tuple[tuple[int, ...], bool], float] = {}
    for group, hypotheses in enumerate(live):
        kept = sorted(done[group], key=lambda each: -each[0])[:width]
        found |= {(tuple(ids), False): score for score, ids in kept}
        cut = [(tuple(ids), total / longest**options.length_penalty) for total, ids in hypotheses]
        found |= {(ids, True): score for ids, score in cut[: width - len(kept)]}
    ranked = sorted(found.items(), key=lambda each: (each[0][1], -each[1]))
    return [(list(ids), score, truncated) for (ids, truncated), score in ranked][: options.beam]


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize("diversity", [0.0, 0.5, 9.0])
@pytest.mark.parametrize(("beam", "groups"), [(4, 2), (3, 3), (6, 2)])
def test_a_diverse_search_equals_its_definition(
    tiny: "Tiny", beam: int, groups: int, diversity: float, length_penalty: float
) -> None:
    options = DecodingSettings(
        beam=beam,
        beam_groups=groups,
        diversity=diversity,
        max_length=5,
        length_penalty=length_penalty,
    )
    model, sources = tiny.case(beam, 4, vocab=9)
    following = tiny.following(model, SPECIAL)
    found = beam_search(model, sources, options, forbidden=SPECIAL, n_best=beam)
    for source, hypotheses in zip(sources, found, strict=True):
        assert tiny.outcome(hypotheses) == definition(following, source, options)
    for n_best in (1, 2):
        fewer = beam_search(model, sources, options, forbidden=SPECIAL, n_best=n_best)
        assert [tiny.outcome(h) for h in fewer] == [tiny.outcome(h[:n_best]) for h in found]


def test_the_first_group_is_a_plain_search_and_the_others_add_to_it(tiny: "Tiny") -> None:
    model, sources = tiny.case(1, 8, vocab=9)
    plain = DecodingSettings(beam=2, max_length=8)
    options = DecodingSettings(beam=6, beam_groups=3, diversity=50.0, max_length=8)
    first = beam_search(model, sources, plain, forbidden=SPECIAL, n_best=2)
    found = beam_search(model, sources, options, forbidden=SPECIAL, n_best=6)
    for few, many in zip(first, found, strict=True):
        assert {tuple(h.tokens) for h in few} <= {tuple(h.tokens) for h in many}
    usual = beam_search(
        model, sources, DecodingSettings(beam=6, max_length=8), forbidden=SPECIAL, n_best=6
    )

    def beginnings(results: Sequence[Sequence[Hypothesis]]) -> int:
        return sum(len({tuple(h.tokens[:1]) for h in each}) for each in results)

    assert beginnings(found) > beginnings(usual)


def test_scores_are_those_of_the_model(tiny: "Tiny") -> None:
    model, sources = tiny.case(2, 6, vocab=9)
    options = DecodingSettings(beam=4, beam_groups=4, diversity=1.0, max_length=6)
    found = beam_search(model, sources, options, forbidden=SPECIAL, n_best=4)
    pairs = [(s, h) for s, hypotheses in zip(sources, found, strict=True) for h in hypotheses]
    targets = [h.tokens if h.truncated else [*h.tokens, EOS] for _, h in pairs]
    for (_, h), forced in zip(
        pairs, force_score(model, [source for source, _ in pairs], targets), strict=True
    ):
        assert h.token_log_probabilities == pytest.approx(forced)
        assert h.score == pytest.approx(sum(forced) / len(forced), rel=1e-5)


def test_groups_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"`beam_groups` must divide `beam` \(5\), but is 2"):
        DecodingSettings(beam_groups=2)
    with pytest.raises(SettingsError, match="`beam_groups` must be 1 with sampling"):
        DecodingSettings(beam_groups=5, sampling=True)
    with pytest.raises(SettingsError, match="`diversity` must be at least 0"):
        DecodingSettings(diversity=-1.0)
