"""Rules and penalties: a search with them equals its definition, on random tiny networks."""

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from tfm.data.errors import SettingsError
from tfm.data.tokenizer import BOS, EOS, PAD, UNK
from tfm.model.search.beam import beam_search, force_score
from tfm.model.settings import DecodingSettings

if TYPE_CHECKING:
    from conftest import Tiny

SPECIAL = (PAD, UNK, BOS)


def ngrams(ids: Sequence[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]


def allowed(options: DecodingSettings, ids: Sequence[int]) -> bool:
    """Tell whether the options allow a translation, EOS included, or the beginning of one."""
    n = options.no_repeat_ngram
    if n and len(set(ngrams(ids, n))) < len(ngrams(ids, n)):
        return False
    return ids[-1] != EOS or len(ids) >= options.min_length


OPTIONS = [
    dict(min_length=5),
    dict(min_length=9, max_length=9, max_length_ratio=0.1),
    dict(no_repeat_ngram=1),
    dict(no_repeat_ngram=2),
    dict(no_repeat_ngram=3, max_length=12),
    dict(repetition_penalty=1.5),
    dict(repetition_penalty=4.0, length_penalty=0.0),
    dict(min_length=6, no_repeat_ngram=2, repetition_penalty=1.2),
]


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("changes", OPTIONS, ids=str)
def test_a_search_with_options_equals_its_definition(
    tiny: "Tiny", changes: dict[str, float], beam: int
) -> None:
    options = DecodingSettings(**{"max_length": 9, "beam": beam} | changes)  # type: ignore[arg-type]
    plain = DecodingSettings(max_length=9, beam=beam)
    model, sources = tiny.case(3, 5, vocab=7)
    following = tiny.following(
        model,
        SPECIAL,
        penalty=options.repetition_penalty,
        bars=lambda ids, token: not allowed(options, [*ids, token]),
    )
    found = beam_search(model, sources, options, forbidden=SPECIAL, n_best=beam)
    for source, hypotheses in zip(sources, found, strict=True):
        assert tiny.outcome(hypotheses) == tiny.search(following, source, options)
    # and it is another one than without them
    other = beam_search(model, sources, plain, forbidden=SPECIAL, n_best=beam)
    assert [tiny.outcome(h) for h in found] != [tiny.outcome(h) for h in other]


@pytest.mark.parametrize("changes", OPTIONS, ids=str)
def test_a_wide_beam_with_options_finds_the_best_that_they_allow(
    tiny: "Tiny", changes: dict[str, float]
) -> None:
    longest = 4
    changes = {key: min(value, longest) for key, value in changes.items() if "ratio" not in key}
    options = DecodingSettings(beam=400, **changes | {"max_length": longest})  # type: ignore[arg-type]
    model, sources = tiny.case(5, 3, vocab=7)
    following = tiny.following(model, penalty=options.repetition_penalty)
    for source in sources:
        scores = {}
        for length in range(longest):
            for ids in itertools.product(range(EOS + 1, model.target_vocab), repeat=length):
                whole = [*ids, EOS]
                if all(allowed(options, whole[: i + 1]) for i in range(len(whole))):
                    each = (following(source, whole[:i])[token] for i, token in enumerate(whole))
                    scores[ids] = sum(each) / len(whole) ** options.length_penalty
        (found,) = beam_search(model, [source], options, forbidden=SPECIAL, n_best=400)
        finished = [h for h in found if not h.truncated]
        best_first = sorted(scores, key=scores.__getitem__, reverse=True)
        assert [tuple(h.tokens) for h in finished] == best_first
        assert [h.score for h in finished] == pytest.approx([scores[ids] for ids in best_first])


def test_a_penalty_changes_the_score_and_not_log_p(tiny: "Tiny") -> None:
    model, sources = tiny.case(6, 6, vocab=7)
    options = DecodingSettings(beam=4, max_length=8, repetition_penalty=2.0)
    found = beam_search(model, sources, options, forbidden=SPECIAL)
    targets = [h.tokens if h.truncated else [*h.tokens, EOS] for (h,) in found]
    following, changed = tiny.following(model, penalty=2.0), 0
    scores = force_score(model, sources, targets)
    for source, (h,), ids, forced in zip(sources, found, targets, scores, strict=True):
        assert h.token_log_probabilities == pytest.approx(forced)
        assert h.log_probability == pytest.approx(math.fsum(forced))
        total = sum(following(source, ids[:i])[token] for i, token in enumerate(ids))
        changed += total != pytest.approx(sum(forced))
        assert h.score == pytest.approx(total / len(ids))
    assert changed


def test_where_nothing_may_follow_there_is_still_a_translation(tiny: "Tiny") -> None:
    model, sources = tiny.case(7, 4, vocab=7)
    # 3 ids beside EOS, each at most once, and no end before 9
    options = DecodingSettings(beam=3, max_length=9, min_length=9, no_repeat_ngram=1)
    for (found,) in beam_search(model, sources, options, forbidden=SPECIAL):
        assert found.truncated and sorted(found.tokens) == [4, 5, 6]
    endless = beam_search(model, [[4, EOS]], DecodingSettings(), forbidden=range(7))
    assert [(h.tokens, h.score, h.truncated) for h in endless[0]] == [([], 0.0, True)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(min_length=-1), "`min_length` must be at least 0, but is -1"),
        (dict(min_length=9, max_length=8), r"`min_length` must be at most `max_length` \(8\)"),
        (dict(no_repeat_ngram=-1), "`no_repeat_ngram` must be at least 0, but is -1"),
        (dict(repetition_penalty=0.9), "`repetition_penalty` must be at least 1 and at most 100"),
    ],
)
def test_options_out_of_range_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        DecodingSettings(**changes)  # type: ignore[arg-type]
