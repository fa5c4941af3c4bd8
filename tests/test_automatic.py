"""Training without settings: what is chosen, that it is said, and that a run keeps what it has."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tfm.cli.main import main
from tfm.model.checkpoint import load_model
from tfm.model.settings import SIZES, Settings
from tfm.model.training import automatic
from tfm.model.training.automatic import TABLE, Place, Survey, choose, describe, look_at
from tfm.model.training.distributed import ALONE
from tfm.model.training.material import Order
from tfm.model.training.state import read_state, stored_settings

README = (Path(__file__).resolve().parent.parent / "README.md").read_text("utf-8")
CPU, GPU = Place(True, 4096), Place(False, 65_536)
QUICK = ["--set", "model.d_model=16", "--set", "model.d_ff=32", "--set", "model.encoder_layers=1"]
QUICK += [
    "--set",
    "model.decoder_layers=1",
    "--set",
    "decoding.max_length=8",
    "--precision",
    "fp32",
]
QUICK += ["--set", "tokenizer.vocab_size=400", "--set", "training.validate_sentences=3"]


def command(output: Path, *more: str) -> list[str]:
    return [
        "train",
        *QUICK,
        "--train",
        "builtin:90",
        "--valid",
        "builtin:4",
        "-o",
        str(output),
        *more,
    ]


def of(pairs: int, place: Place = CPU, *overrides: str) -> Settings:
    """Return what is chosen for so many pairs of captions' length."""
    return choose(Survey(pairs, pairs * 70), place, list(overrides))


# What is chosen


def test_29_000_captions_get_the_recipe_that_was_measured_on_them() -> None:
    settings = of(29_000)
    model, training = settings.model, settings.training
    assert (model.d_model, model.d_ff, model.heads) == (128, 256, 4)
    assert (model.encoder_layers, model.decoder_layers, model.dropout) == (4, 4, 0.3)
    assert (settings.tokenizer.vocab_size, settings.tokenizer.kind) == (8000, "bpe")
    assert training.consistency == "none" and training.ema_decay == pytest.approx(0.999, abs=1e-4)
    assert (training.learning_rate, training.schedule) == (5e-3, "cosine")
    assert training.weight_decay == 0.1
    assert training.batch_tokens * training.accumulate == 4096
    assert 10_000 <= training.steps <= 12_500 and training.warmup_steps == 500


def test_more_pairs_get_a_larger_network_and_vocabulary_and_less_than_proportional_steps() -> None:
    chosen = [of(pairs, GPU) for pairs in (5_000, 29_000, 200_000, 2_000_000, 10_000_000)]
    sizes = [SIZES["tiny"]["d_model"]] * 2 + [SIZES["base"]["d_model"]] * 3
    assert [settings.model.d_model for settings in chosen] == sizes
    vocabularies = [settings.tokenizer.vocab_size for settings in chosen]
    assert vocabularies == sorted(set(vocabularies))
    steps = [settings.training.steps for settings in chosen]
    assert steps[0] < steps[1] < steps[-1] == 100_000


@pytest.mark.parametrize("pairs", [1, 200, 10_000, 10_001, 500_000, 10**8])
@pytest.mark.parametrize("place", [CPU, GPU, Place(False, 8192, 8)])
def test_whatever_is_chosen_can_be_trained(pairs: int, place: Place) -> None:
    training = of(pairs, place).training
    assert 200 <= training.steps <= 100_000
    assert training.warmup_steps < training.steps and training.validate_every <= training.steps
    assert training.batch_tokens <= place.batch


def test_a_step_is_the_same_however_it_is_cut() -> None:
    """Batches fit the device, and all processes together take the tokens of the table."""
    places = [CPU, GPU, Place(False, 8192), Place(False, 8192, 2), Place(False, 65_536, 4)]
    for place in places:
        training = of(5_000_000, place).training
        tokens = training.batch_tokens * training.accumulate * place.processes
        assert 24_900 <= tokens <= 25_000, place
    assert of(5_000_000, GPU).training.accumulate == 1
    assert of(5_000_000, Place(False, 8192)).training.accumulate == 4


def test_a_cpu_gets_no_network_that_would_take_it_weeks() -> None:
    assert of(300_000, CPU).model.d_model == 256 and of(300_000, GPU).model.d_model == 512
    assert of(29_000, CPU) == of(29_000, GPU)


def test_what_is_set_is_not_chosen_and_the_rest_follows_it() -> None:
    settings = of(29_000, CPU, "training.steps=100", "model.size=small", "training.clip=2.0")
    assert settings.training.steps == 100 and settings.training.warmup_steps == 10
    assert settings.training.validate_every == 10 and settings.training.clip == 2.0
    assert settings.training.ema_decay == 0.95
    assert settings.model.d_model == 256 and settings.model.dropout == SIZES["small"]["dropout"]
    assert settings.training.schedule == "cosine", "of the table, still"


def test_blank_pairs_do_not_count_and_the_longer_side_does(tmp_path: Path) -> None:
    for language, lines in (("en", ["abcd", "", "abc"]), ("de", ["ab", "x", "abcdefgh"])):
        (tmp_path / f"text.{language}").write_text("".join(line + "\n" for line in lines))
    corpus = str(tmp_path / "text")
    order = Order(settings=Settings(), train=corpus, valid=None, directory=tmp_path)
    assert look_at(order) == Survey(pairs=2, characters=12)
    assert look_at(order).pieces == 2.5


def test_the_tables_of_readme_and_docstring_are_the_table() -> None:
    for text in (README, automatic.__doc__ or ""):
        for row in TABLE:
            pairs = "more" if row.pairs > 1e9 else f"{row.pairs:,.0f}"
            model = row.model
            layers = f"{model['encoder_layers']}+{model['decoder_layers']}"
            cells = [
                f"d {model['d_model']}, ff {model['d_ff']}, {layers} layers",
                f"{row.vocabulary:,}",
                f"{model['dropout']}",
                f"{row.decay:g}",
                f"{row.step:,}",
                f"{row.passes}",
                f"{row.rate:.0e}".replace("e-0", "e-"),
            ]
            pattern = r"[ |]+".join(map(re.escape, [pairs, *cells]))
            assert re.search(pattern, text), pattern


# That it is said


def test_what_is_chosen_is_said_with_its_reason() -> None:
    survey = Survey(29_000, 29_000 * 70)
    lines = describe(choose(survey, CPU, []), survey, CPU, given=False)
    for expected in (
        "no --config: settings chosen for 29,000 pairs of about 18 pieces on a CPU; --set",
        "network: d 128, ff 256, 4 heads, 4+4 layers, dropout 0.3: on so few pairs larger",
        "vocabulary: 8,000 pieces: in fewer pairs fewer",
        "of 4,096 tokens a side, so that each pair is seen about 92 times",
        "learning rate: 0.005 after 500 steps, then cosine; weight decay 0.1; a moving average",
    ):
        assert any(expected in line for line in lines), (expected, lines)
    other = describe(choose(survey, CPU, ["model.d_ff=512"]), survey, CPU, given=True)
    assert any("ff 512" in line and "as it was set" in line for line in other)
    assert any("vocabulary: that of --tokenizer" in line for line in other)
    many = Survey(10**6, 10**8)
    slow = describe(choose(many, CPU, []), many, CPU, given=False)
    assert any("d 256" in line and "take a CPU weeks" in line for line in slow)


def test_dump_config_shows_what_would_be_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--train", "builtin:300", "--device", "cpu", "--dump-config"]) == 0
    captured = capsys.readouterr()
    order = Order(settings=Settings(), train="builtin:300", valid=None, directory=tmp_path)
    assert Settings.from_tables(tomllib.loads(captured.out), "stdout") == choose(
        look_at(order), CPU, []
    )
    assert "no --config: settings chosen for 300 pairs" in captured.err
    assert not list(tmp_path.iterdir())


# The run that is trained with it


def test_a_run_has_the_chosen_settings_and_keeps_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table changes meanwhile, as in a later version, and the run goes on as it was."""
    output = tmp_path / "run"
    assert main(command(output, "--steps", "12", "--set", "training.clip=2.0")) == 0
    assert "no --config: settings chosen for 90 pairs" in capsys.readouterr().err
    settings = load_model(output).settings
    assert settings.training.schedule == "cosine" and settings.training.warmup_steps == 1
    assert settings.training.average_last == 0 and settings.training.clip == 2.0

    monkeypatch.setattr(automatic, "choose", lambda *_: pytest.fail("chosen anew"))
    assert main(command(output, "--steps", "14")) == 0
    err = capsys.readouterr().err
    assert "changed from here on: training.steps 12 -> 14\n" in err
    assert err.count("changed from here on") == 1, "what was set in the first sitting holds"
    stored = read_state(output / "checkpoints/last.safetensors")
    now = stored_settings(stored, output)
    assert now is not None and now.training.clip == 2.0 and now.training.steps == 14
    assert main(command(output, "--steps", "+2")) == 0
    assert "continues after step 14 of 16; " in capsys.readouterr().err


def test_a_run_with_a_config_can_be_continued_without_it(
    train_small: Callable[..., object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_small(tmp_path / "run")
    corpora = ["--train", "builtin:60", "--valid", "builtin:4", "--attention", "math"]
    run = ["-o", str(tmp_path / "run"), "--device", "cpu", "--precision", "fp32"]
    assert main(["train", *corpora, *run, "--steps", "14"]) == 0
    err = capsys.readouterr().err
    assert "changed from here on: training.steps 12 -> 14\n" in err and "chosen" not in err


def test_a_directory_that_is_no_run_is_refused_before_the_corpus_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("two years of work")
    assert main(["train", "--train", str(tmp_path / "nowhere"), "-o", str(tmp_path)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "exists and is no training run" in line


def test_settings_that_are_given_are_left_as_they_are(tmp_path: Path) -> None:
    order = Order(settings=Settings(), train="nowhere", valid=None, directory=tmp_path)
    assert automatic.choose_together(order, pytest.fail, ALONE) is order
    assert automatic.with_settings(order, pytest.fail) is order
