"""Rules and penalties: a search with them equals its definition, on random tiny networks."""

import itertools
import math
import random
from collections.abc import Sequence

import pytest
import torch

from tfm.data.errors import SettingsError
from tfm.data.tokenizer import BOS, EOS, PAD, UNK
from tfm.model.attention.padding import Padding
from tfm.model.search.beam import Hypothesis, beam_search, force_score
from tfm.model.settings import DecodingSettings, ModelSettings
from tfm.model.transformer import Transformer

SPECIAL = (PAD, UNK, BOS)
SOURCE_VOCAB = 9


def random_model(seed: int, *, vocab: int = 7) -> Transformer:
    """Return an untrained network with uneven predictions, in fp64, so that nothing is a tie."""
    torch.manual_seed(seed)
    shape = ModelSettings(d_model=8, d_ff=16, heads=2, encoder_layers=1, decoder_layers=2)
    model = Transformer(shape, source_vocab=SOURCE_VOCAB, target_vocab=vocab, joint=False)
    with torch.no_grad():
        model.target_embedding.weight.mul_(3)
    return model.double().eval()


def random_sources(seed: int, count: int) -> list[list[int]]:
    rng = random.Random(seed)
    words = range(EOS + 1, SOURCE_VOCAB)
    return [[*rng.choices(words, k=rng.randint(1, 6)), EOS] for _ in range(count)]


def following(model: Transformer, source: Sequence[int], ids: Sequence[int]) -> list[float]:
    """Return log P of every id after BOS and `ids`: no cache, no padding."""
    with torch.no_grad():
        target = torch.tensor([[BOS, *ids]])
        logits = model(torch.tensor([source]), target, source=Padding.from_lengths([len(source)]))
    scores: list[float] = logits[0, -1].log_softmax(-1).tolist()
    return scores


def penalised(log_p: list[float], ids: Sequence[int], penalty: float) -> list[float]:
    """Return log P' by the formula, id by id."""
    mean = math.fsum(log_p) / len(log_p)
    x = [p - mean for p in log_p]
    for i in set(ids):
        x[i] = x[i] / penalty if x[i] > 0 else x[i] * penalty
    whole = math.log(math.fsum(map(math.exp, x)))
    return [each - whole for each in x]


def ngrams(ids: Sequence[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]


def allowed(options: DecodingSettings, ids: Sequence[int]) -> bool:
    """Tell whether the options allow a translation, EOS included, or the beginning of one."""
    n = options.no_repeat_ngram
    if n and len(set(ngrams(ids, n))) < len(ngrams(ids, n)):
        return False
    return ids[-1] != EOS or len(ids) >= options.min_length


def definition(
    model: Transformer, source: Sequence[int], options: DecodingSettings
) -> list[tuple[list[int], float, bool]]:
    """Search as the options are defined: one sentence, no cache, always up to the longest."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    longest = options.longest(len(source) - 1)
    stuck: list[tuple[float, list[int]]] = []
    for n in range(1, longest + 1):
        extensions = []
        for beam, (total, ids) in enumerate(live):
            log_p = following(model, source, ids)
            for token, counts in enumerate(penalised(log_p, ids, options.repetition_penalty)):
                if token not in SPECIAL and allowed(options, [*ids, token]):
                    extensions.append((-(total + counts), beam, token, ids))
        extensions.sort(key=lambda extension: extension[:3])
        for minus_total, _, token, ids in extensions[: options.beam]:
            if token == EOS:
                finished.append((-minus_total / n**options.length_penalty, ids))
        if finished and options.beam == 1:
            return [(finished[0][1], finished[0][0], False)]
        going = [e for e in extensions if e[2] != EOS][: options.beam]
        stuck = stuck or (live if not going else [])
        live = [(-minus_total, [*ids, token]) for minus_total, _, token, ids in going]
    finished.sort(key=lambda found: -found[0])
    left = live if not stuck else [] if finished else stuck
    cut = [(ids, total / max(len(ids), 1) ** options.length_penalty, True) for total, ids in left]
    return ([(ids, score, False) for score, ids in finished] + cut)[: options.beam]


def outcome(hypotheses: Sequence[Hypothesis]) -> list[tuple[list[int], float, bool]]:
    return [(h.tokens, pytest.approx(h.score, rel=1e-5), h.truncated) for h in hypotheses]


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
def test_a_search_with_options_equals_its_definition(changes: dict[str, float], beam: int) -> None:
    options = DecodingSettings(**{"max_length": 9, "beam": beam} | changes)  # type: ignore[arg-type]
    plain = DecodingSettings(max_length=9, beam=beam)
    model = random_model(3)
    sources = random_sources(beam, 5)
    found = beam_search(model, sources, options, forbidden=SPECIAL, n_best=beam)
    for source, hypotheses in zip(sources, found, strict=True):
        assert outcome(hypotheses) == definition(model, source, options)
    # and it is another one than without them
    other = beam_search(model, sources, plain, forbidden=SPECIAL, n_best=beam)
    assert [outcome(h) for h in found] != [outcome(h) for h in other]


@pytest.mark.parametrize("changes", OPTIONS, ids=str)
def test_a_wide_beam_with_options_finds_the_best_that_they_allow(changes: dict[str, float]) -> None:
    longest = 4
    changes = {key: min(value, longest) for key, value in changes.items() if "ratio" not in key}
    options = DecodingSettings(beam=400, **changes | {"max_length": longest})  # type: ignore[arg-type]
    model = random_model(5)
    for source in random_sources(5, 3):
        scores = {}
        for length in range(longest):
            for ids in itertools.product(range(EOS + 1, model.target_vocab), repeat=length):
                whole = [*ids, EOS]
                if all(allowed(options, whole[: i + 1]) for i in range(len(whole))):
                    total = 0.0
                    for i, token in enumerate(whole):
                        log_p = following(model, source, whole[:i])
                        total += penalised(log_p, whole[:i], options.repetition_penalty)[token]
                    scores[ids] = total / len(whole) ** options.length_penalty
        (found,) = beam_search(model, [source], options, forbidden=SPECIAL, n_best=400)
        finished = [h for h in found if not h.truncated]
        best_first = sorted(scores, key=scores.__getitem__, reverse=True)
        assert [tuple(h.tokens) for h in finished] == best_first
        assert [h.score for h in finished] == pytest.approx([scores[ids] for ids in best_first])


def test_a_penalty_changes_the_score_and_not_log_p() -> None:
    model = random_model(6)
    sources = random_sources(6, 6)
    options = DecodingSettings(beam=4, max_length=8, repetition_penalty=2.0)
    found = beam_search(model, sources, options, forbidden=SPECIAL)
    targets = [h.tokens if h.truncated else [*h.tokens, EOS] for (h,) in found]
    changed = 0
    scores = force_score(model, sources, targets)
    for source, (h,), ids, forced in zip(sources, found, targets, scores, strict=True):
        assert h.token_log_probabilities == pytest.approx(forced)
        assert h.log_probability == pytest.approx(math.fsum(forced))
        total = 0.0
        for i, token in enumerate(ids):
            total += penalised(following(model, source, ids[:i]), ids[:i], 2.0)[token]
        changed += total != pytest.approx(sum(forced))
        assert h.score == pytest.approx(total / len(ids))
    assert changed


def test_where_nothing_may_follow_there_is_still_a_translation() -> None:
    model = random_model(7)  # 3 ids beside EOS, each at most once, and no end before 9
    options = DecodingSettings(beam=3, max_length=9, min_length=9, no_repeat_ngram=1)
    for (found,) in beam_search(model, random_sources(7, 4), options, forbidden=SPECIAL):
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
