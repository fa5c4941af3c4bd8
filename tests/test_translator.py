"""The public Python interface: text in, text out, one for one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tfm.data.builtin.corpus import builtin_pairs
from tfm.data.errors import BackendError, CheckpointError, SettingsError
from tfm.data.segments import join_segments, split_line
from tfm.data.tokenizer import EOS
from tfm.model import Request, Translator
from tfm.model.checkpoint import LoadedModel
from tfm.model.search.beam import force_score
from tfm.model.translation import Candidate

NEAR_TIE = 0.1  # nats; bf16 moves a log probability of the tiny trained model by up to 0.03
TEXTS = [
    "The woman reads a book.",
    "A dog runs.",
    "",
    "I do not see the house, and two children play in the garden.",
    " \t\u3000\u2028\x0b\x0c\x85",
    "Nul\x00, </s>, <unk>, ▁ and 🧪",
]


@pytest.fixture
def translator(tiny_model: Path) -> Translator:
    return Translator.load(tiny_model, device="cpu")


def test_each_text_gives_one_translation_in_order(translator: Translator) -> None:
    found = translator.translate(TEXTS)
    assert found == [translator.translate([text])[0] for text in TEXTS]
    assert [found[i] for i, text in enumerate(TEXTS) if not text.strip()] == ["", ""]
    assert len(set(found)) > 3  # the model of these tests has something to say


def test_blank_texts_do_not_reach_the_model(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(type(translator.model), "encode")
    (blank,) = translator.translate_all([" \u2028 "])
    assert (blank.text, blank.score, blank.tokens, blank.truncated) == ("", 0.0, [], False)
    assert len(blank.n_best) == 1


def test_a_translation_carries_its_score_pieces_and_alternatives(translator: Translator) -> None:
    for text, found in zip(
        TEXTS[:2], translator.translate_all(TEXTS[:2], n_best=3, length_penalty=0.5), strict=True
    ):
        assert found.source == text
        assert [each.score for each in found.n_best] == sorted(
            (each.score for each in found.n_best), reverse=True
        )
        assert (found.text, found.score) == (found.n_best[0].text, found.n_best[0].score)
        for each in found.n_best:
            assert translator.tokenizer.target_pieces(each.ids) == each.tokens
            assert translator.tokenizer.decode_target(each.ids) == each.text
            ids = each.ids + ([] if each.truncated else [EOS])
            source = [*translator.tokenizer.encode_source(text), EOS]
            (forced,) = force_score(translator.model, [source], [ids])
            assert each.log_probability == pytest.approx(sum(forced), rel=1e-4)
            assert each.score == pytest.approx(sum(forced) / len(forced) ** 0.5, rel=1e-4)


def test_options_hold_for_one_call(translator: Translator) -> None:
    own = translator.decoding
    short = translator.translate_all(TEXTS, max_length=2)
    assert max(len(each.tokens) + (not each.truncated) for each in short) == 2
    assert translator.translate(TEXTS, beam=1) != translator.translate(TEXTS, beam=4)
    assert translator.decoding == own
    with pytest.raises(SettingsError, match="`beam` must be at least 1, but is 0"):
        translator.translate(TEXTS, beam=0)
    with pytest.raises(SettingsError, match=r"at most `beam` \(2\), but is 3"):
        translator.translate_all(TEXTS, beam=2, n_best=3)


def test_no_translation_has_a_line_break_even_if_the_model_wants_one(
    translator: Translator,
) -> None:
    model = translator.model
    (line_feed,) = [i for i in translator.tokenizer.line_break_ids if _is_line_feed(translator, i)]
    with torch.no_grad():  # logits are now the product of two constants, whatever the input
        model.decoder_norm.weight.zero_()
        model.decoder_norm.bias.fill_(1.0)
        model.target_embedding.weight.zero_()
        model.target_embedding.weight[line_feed] = 3.0
        model.target_embedding.weight[EOS] = -1.0
    loaded = LoadedModel(model, translator.tokenizer, translator.settings)
    translator = Translator(loaded, translator.plan)
    (found,) = translator.translate_all(["A dog runs."])
    assert found.tokens
    assert not {"\n", "\r"} & set(found.text)
    translator._forbidden -= translator.tokenizer.line_break_ids
    with pytest.raises(AssertionError, match="line break"):
        translator.translate(["A dog runs."])


def _is_line_feed(translator: Translator, token: int) -> bool:
    return translator.tokenizer.decode_target([token]) == "\n"


def test_a_text_longer_than_the_model_knows_is_translated_in_parts(
    translator: Translator,
) -> None:
    said: list[str] = []
    translator.warn = said.append
    long = "The cat sleeps. A dog runs. " * 40 + "x" * 300
    limit = translator.settings.data.max_length
    parts = split_line(long, lambda text: len(translator.tokenizer.encode_source(text)) <= limit)
    assert len(parts) > 5
    expected = join_segments(parts, translator.translate([part.text for part in parts]))
    assert not said
    found = translator.translate_all([long, "A dog runs.", long], n_best=2)
    assert [each.text for each in found] == [expected, *translator.translate(["A dog runs."])] + [
        expected
    ]
    assert len(said) == 1 and "longer than the model was trained on (128" in said[0]
    best = found[0].n_best[0]
    assert best.score == pytest.approx(
        best.log_probability / (len(best.tokens) + len(parts)), rel=0.2
    )


def test_one_string_is_no_list_of_texts(translator: Translator) -> None:
    with pytest.raises(TypeError, match=r"translate\(\[text\]\)"):
        translator.translate("A dog runs.")


def test_a_stream_is_translated_as_it_comes(translator: Translator) -> None:
    asked: list[int] = []

    def batches() -> Iterator[list[str]]:
        for i in range(3):
            asked.append(i)
            yield TEXTS[i : i + 2]

    stream = translator.stream(batches(), beam=2)
    assert [each.text for each in next(stream)] == translator.translate(TEXTS[:2], beam=2)
    assert asked == [0]
    assert [len(translations) for translations in stream] == [2, 2]


def test_backends_give_the_same_tokens_in_fp32(tiny_model: Path) -> None:
    found = [
        Translator.load(tiny_model, device="cpu", attention=name).translate_all(TEXTS, n_best=3)
        for name in ("math", "sdpa", "auto")
    ]
    tokens = [[[c.tokens for c in each.n_best] for each in translations] for translations in found]
    assert tokens[0] == tokens[1] == tokens[2]


def test_half_precision_translates_alike(tiny_model: Path, translator: Translator) -> None:
    half = Translator.load(tiny_model, device="cpu", precision="bf16")
    assert half.describe()[0] == "device: cpu, bf16"
    assert translator.describe()[0] == "device: cpu, fp32"
    # Near a tie rounding may choose another piece, so both score the same translation.
    source = [*translator.tokenizer.encode_source(TEXTS[1]), EOS]
    [found] = translator.translate([TEXTS[1]], beam=1)
    target = [*translator.tokenizer.encode_target(found), EOS]
    assert half.translate([TEXTS[1]], beam=1) != [""]
    full, rounded = (force_score(each.model, [source], [target])[0] for each in (translator, half))
    assert rounded == pytest.approx(full, abs=0.1)  # bf16 has 8 bits of mantissa


def test_in_half_precision_only_near_ties_depend_on_the_batch(tiny_model_directory: Path) -> None:
    """Promise 4 where arithmetic rounds at 8 bits, and rounds otherwise in another batch.

    A near tie is a choice between two ids that fp32 finds alike, up to NEAR_TIE. What follows it
    may differ in anything, and a wider beam chooses in every step: so this looks at greedy search.
    """
    full, half = (
        Translator.load(tiny_model_directory, device="cpu", precision=precision)
        for precision in ("fp32", "bf16")
    )
    texts = [pair.source for pair in builtin_pairs("test", 40)]
    together = half.translate_all(texts, beam=1, max_length=30)
    alone = [half.translate_all([text], beam=1, max_length=30)[0] for text in texts]
    parted = [
        trio for trio in zip(texts, together, alone, strict=True) if trio[1].ids != trio[2].ids
    ]
    assert len(parted) <= 0.5 * len(texts)
    assert all(gap_where_they_part(full, *trio) < NEAR_TIE for trio in parted)
    for one, other in zip(together, alone, strict=True):
        if one.ids == other.ids:
            assert one.score == pytest.approx(other.score, abs=NEAR_TIE)


def gap_where_they_part(
    translator: Translator, text: str, one: Candidate, other: Candidate
) -> float:
    """Return how much likelier one choice is than the other at the first that is not the same."""
    source = [*translator.tokenizer.encode_source(text), EOS]
    targets = [[*one.ids, EOS], [*other.ids, EOS]]
    place = next(i for i, (a, b) in enumerate(zip(*targets, strict=False)) if a != b)
    scores = force_score(translator.model, [source] * 2, [ids[: place + 1] for ids in targets])
    return abs(scores[0][-1] - scores[1][-1])


def test_what_cannot_be_loaded_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such directory"):
        Translator.load(tmp_path / "none")
    with pytest.raises(BackendError, match="--device toaster: unknown"):
        Translator.load(tiny_model, device="toaster")
    with pytest.raises(BackendError, match="--attention magic: unknown"):
        Translator.load(tiny_model, attention="magic")


def test_required_words_of_a_long_line_are_left_out_and_said_once(translator: Translator) -> None:
    said: list[str] = []
    translator.warn = said.append
    long = Request("The cat sleeps. " * 60, required=("Hund",))
    (found,) = translator.translate_all([long])
    assert found.text == translator.translate([Request(long.text)])[0]
    assert [text for text in said if "left out" in text] == [
        "required words of a line that is translated in parts are left out"
    ]
    translator.translate([long])
    assert len(said) == 2  # that, and that there is a long line
