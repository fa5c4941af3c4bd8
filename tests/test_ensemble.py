"""Ensembles: several networks that decide on each next piece by the mean of their probabilities."""

import itertools
import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tfm.cli.main import main
from tfm.data.corpus import Pair
from tfm.data.errors import CheckpointError
from tfm.data.settings import TokenizerSettings
from tfm.data.tokenizer import BOS, EOS, PAD, UNK, train_tokenizer
from tfm.model import Translator
from tfm.model.attention.padding import Padding
from tfm.model.checkpoint import build_model, load_model, save_weights
from tfm.model.forced import score_pairs
from tfm.model.search.beam import beam_search
from tfm.model.search.ensemble import Ensemble, log_of_mean
from tfm.model.search.prepared import prepare
from tfm.model.settings import DecodingSettings, ModelSettings, Settings
from tfm.model.transformer import Transformer

TEXTS = ["A dog runs.", "The woman reads a book.", "", "I do not see the house."]
VOCAB = 7


@pytest.fixture(scope="module")
def others(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write two more models with the tokenizer of the first; return their directories."""
    places = []
    for seed in (5, 6):
        place = tmp_path_factory.mktemp("other") / "model"
        shutil.copytree(tiny_model, place)
        loaded = load_model(place)
        torch.manual_seed(seed)
        with torch.no_grad():
            for weight in loaded.model.parameters():
                weight.add_(0.3 * weight.std() * torch.randn_like(weight))
        fingerprint = {"tokenizer": loaded.tokenizer.fingerprint}
        save_weights(place / "model.safetensors", loaded.model, fingerprint)
        places.append(place)
    return places


def small_network(seed: int, width: int) -> Transformer:
    torch.manual_seed(seed)
    settings = ModelSettings(
        d_model=width, d_ff=16, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0
    )
    model = Transformer(settings, source_vocab=VOCAB, target_vocab=VOCAB, joint=True).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)  # opinions that differ
    return model


def mean_log_probability(
    models: Sequence[Transformer], source: Sequence[int], target: Sequence[int]
) -> float:
    """Return log of the product of mean probabilities, written out id by id."""
    total = 0.0
    for t, id_ in enumerate(target):
        probabilities = []
        for model in models:
            with torch.no_grad():
                logits = model(
                    torch.tensor([source]),
                    torch.tensor([[BOS, *target[:t]]]),
                    source=Padding.from_lengths([len(source)]),
                )
            probabilities.append(logits[0, -1].double().softmax(-1)[id_].item())
        total += math.log(sum(probabilities) / len(probabilities))
    return total


@pytest.mark.parametrize("count", [2, 3])
def test_an_ensemble_finds_what_brute_force_finds(count: int) -> None:
    models = [small_network(seed, width) for seed, width in ((1, 8), (2, 12), (3, 8))][:count]
    source, longest = [4, 6, 5, EOS], 3
    words = [i for i in range(VOCAB) if i not in (PAD, UNK, BOS, EOS)]
    expected = {
        ids: mean_log_probability(models, source, [*ids, EOS]) / (len(ids) + 1)
        for n in range(longest)
        for ids in itertools.product(words, repeat=n)
    }
    options = DecodingSettings(beam=100, max_length=longest)
    ensemble = Ensemble([prepare(model) for model in models])
    (found,) = beam_search(
        ensemble, [source], options, forbidden=(PAD, UNK, BOS), n_best=len(expected)
    )
    assert [tuple(h.tokens) for h in found] == sorted(expected, key=lambda ids: -expected[ids])
    best_first = sorted(expected.values(), reverse=True)
    assert [h.score for h in found] == pytest.approx(best_first, rel=1e-4)
    (alone,) = beam_search(models[0], [source], options, forbidden=(PAD, UNK, BOS), n_best=3)
    assert [h.score for h in alone] != pytest.approx([h.score for h in found[:3]])


def test_sources_of_a_batch_do_not_touch_each_other() -> None:
    ensemble = Ensemble([prepare(small_network(seed, 8)) for seed in (1, 2)])
    sources = [[4, 6, 5, EOS], [5, EOS], [6, 6, 4, 4, 5, 6, EOS]]
    options = DecodingSettings(beam=3, max_length=8)
    together = beam_search(ensemble, sources, options, n_best=3)
    for source, found in zip(sources, together, strict=True):
        (alone,) = beam_search(ensemble, [source], options, n_best=3)
        assert [h.tokens for h in found] == [h.tokens for h in alone]
        assert [h.score for h in found] == pytest.approx([h.score for h in alone], rel=1e-4)


@pytest.mark.parametrize("times", [1, 2])
def test_a_model_with_itself_is_exactly_the_model(tiny_model: Path, times: int) -> None:
    alone = Translator.load(tiny_model, device="cpu")
    itself = Translator.load(tiny_model, ensemble=[tiny_model] * times, device="cpu")
    options = {"n_best": 3, "max_length": 6}
    assert itself.translate_all(TEXTS, **options) == alone.translate_all(TEXTS, **options)
    pairs = [Pair(text, text) for text in TEXTS]
    assert list(score_pairs(itself, [pairs])) == list(score_pairs(alone, [pairs]))


def test_any_number_of_equal_probabilities_has_exactly_their_mean() -> None:
    torch.manual_seed(0)
    log_p = torch.randn(5, 9).log_softmax(-1)
    for count in range(1, 60):
        assert log_of_mean([log_p.clone() for _ in range(count)]).equal(log_p)


def test_impossible_ids_stay_impossible_and_what_is_no_number_stays_none() -> None:
    one, other = torch.tensor([-math.inf, -math.inf, math.nan]), torch.tensor([-math.inf, 0.0, 0.0])
    found = log_of_mean([one, other])
    assert found.tolist()[:2] == pytest.approx([-math.inf, math.log(0.5)])
    assert math.isnan(found[2])


def test_scores_are_those_of_the_mean_probability(tiny_model: Path, others: list[Path]) -> None:
    translator = Translator.load(tiny_model, ensemble=others, device="cpu")
    models = [load_model(path).model for path in (tiny_model, *others)]
    encode = translator.tokenizer.encode_source
    found = translator.translate_all(TEXTS)
    assert [each.text for each in found] != Translator.load(tiny_model).translate(TEXTS)
    (scored,) = score_pairs(translator, [[Pair(text, text) for text in TEXTS]])
    for text, translation, pair in zip(TEXTS, found, scored, strict=True):
        target = [*translator.tokenizer.encode_target(text), EOS]
        expected = mean_log_probability(models, [*encode(text), EOS], target)
        assert pair.log_probability == pytest.approx(expected, rel=1e-4)
        if text:
            ids = translation.ids + ([] if translation.truncated else [EOS])
            expected = mean_log_probability(models, [*encode(text), EOS], ids)
            assert translation.log_probability == pytest.approx(expected, rel=1e-4)


def test_texts_are_as_long_as_the_shortest_trained_member_allows(
    tiny_model: Path, change: Callable[..., Path]
) -> None:
    other = change(max_length=20)
    translator = Translator.load(tiny_model, ensemble=[other], device="cpu")
    said: list[str] = []
    translator.warn = said.append
    translator.translate(["The cat sleeps. A dog runs. The woman reads a book."])
    assert len(said) == 1 and "(20, data.max_length)" in said[0]


@pytest.fixture
def change(tiny_model: Path, tmp_path: Path) -> Callable[..., Path]:
    """Copy the tiny model with other settings of [data]; return the new directory."""

    def copy(**data: str | int) -> Path:
        place = tmp_path / "changed"
        shutil.copytree(tiny_model, place)
        settings = Settings.read(place / "config.toml")
        settings = replace(settings, data=replace(settings.data, **data))  # type: ignore[arg-type]
        (place / "config.toml").write_text(settings.to_toml(), encoding="utf-8")
        return place

    return copy


def test_another_vocabulary_is_refused_with_both_files(tiny_model: Path, tmp_path: Path) -> None:
    place = tmp_path / "other"
    shutil.copytree(tiny_model, place)
    pairs = [Pair(text, text[::-1]) for text in TEXTS if text]
    tokenizer = train_tokenizer(pairs, TokenizerSettings(vocab_size=320))
    tokenizer.save(place / "tokenizer.model")
    loaded = load_model(tiny_model)
    model = build_model(loaded.settings, tokenizer)
    save_weights(place / "model.safetensors", model, {"tokenizer": tokenizer.fingerprint})
    with pytest.raises(CheckpointError, match="another vocabulary") as refusal:
        Translator.load(tiny_model, ensemble=[tiny_model, place])
    for path in (tiny_model, place):
        assert str(path / "tokenizer.model") in str(refusal.value)


def test_another_direction_is_refused(tiny_model: Path, change: Callable[..., Path]) -> None:
    backwards = change(source="de", target="en")
    with pytest.raises(CheckpointError, match="translates de to en, but .* en to de"):
        Translator.load(tiny_model, ensemble=[backwards])


def test_the_verbs_take_an_ensemble(
    tiny_model: Path,
    others: list[Path],
    tiny_corpus: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = [f for path in others for f in ("--ensemble", str(path))] + ["--device", "cpu"]
    translator = Translator.load(tiny_model, ensemble=others, device="cpu")
    sources = Path(f"{tiny_corpus}.en").read_text(encoding="utf-8").splitlines()
    expected = translator.translate(sources)
    output = tmp_path / "out"
    run = ["translate", str(tiny_model), "--input", f"{tiny_corpus}.en", "-o", str(output)]
    assert main([*run, *flags]) == 0
    assert output.read_text(encoding="utf-8").splitlines() == expected
    assert "ensemble: 3 networks" in capsys.readouterr().err

    run = ["eval", str(tiny_model), "--test", tiny_corpus, "-o", str(output), "--json"]
    assert main([*run, *flags]) == 0
    assert output.read_text(encoding="utf-8").splitlines() == expected
    assert json.loads(capsys.readouterr().out)["ensemble"] == [str(path) for path in others]

    assert main(["score", str(tiny_model), "--test", tiny_corpus, "--json", *flags]) == 0
    targets = Path(f"{tiny_corpus}.de").read_text(encoding="utf-8").splitlines()
    (scores,) = score_pairs(translator, [[Pair(*p) for p in zip(sources, targets, strict=True)]])
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["log_probability"] for each in printed] == pytest.approx(
        [each.log_probability for each in scores]
    )


def test_an_ensemble_has_nothing_to_do_where_a_file_is_scored(
    tiny_model: Path, tiny_corpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["eval", "--test", tiny_corpus, "--hypotheses", f"{tiny_corpus}.de"]
    assert main([*run, "--ensemble", str(tiny_model)]) == 2
    assert "--ensemble" in capsys.readouterr().err
