"""Settings are strict, say who is at fault, and survive being written and read."""

import tomllib
from dataclasses import asdict, fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.cli.config import FLAGS, dump_config, load_settings
from tfm.data.errors import SettingsError
from tfm.model.settings import (
    SIZES,
    DecodingSettings,
    ModelSettings,
    Override,
    Settings,
    TrainingSettings,
    presets,
)


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(config: str | Path | None, *overrides: str) -> str:
    with pytest.raises(SettingsError) as caught:
        Settings.read(config, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[model]\nnrom = 'pre'", ["[model]", "unknown key `nrom`", "did you mean `norm`?"]),
        ("[model]\nzzzzz = 1", ["unknown key `zzzzz`", "valid: activation, attention_dropout"]),
        ("[modle]\nd_model = 8", ["unknown section [modle]", "did you mean `model`?"]),
        ("model = 3", ["`model` must be a section", "is 3"]),
        ("steps = 3", ["unknown section [steps]"]),
        ("[training]\nsteps = '3'", ["`steps` must be a whole number", 'is "3"']),
        ("[training]\nsteps = 3.0", ["`steps` must be a whole number", "is 3.0"]),
        ("[training]\nsteps = true", ["`steps` must be a whole number", "is true"]),
        ("[training]\nclip = 'none'", ["`clip` must be a number"]),
        ("[tokenizer]\nseparate = 1", ["`separate` must be true or false"]),
        ("[data]\nsource = 3", ["`source` must be a string"]),
        ("[model]\nnorm = 'sandwich'", ["`norm` must be one of", '"post", "pre"', '"sandwich"']),
        ("[model]\nsize = 'huge'", ["`size` must be one of", '"tiny", "small", "base", "big"']),
        ("[model]\nsize = ['tiny']", ["`size` must be one of", 'is ["tiny"]']),
        ("[training]\nsteps = 0", ["[training]", "`steps` must be at least 1, but is 0"]),
        ("[model]\nencoder_attention = 'sparse'", ["must be one of", '"full", "local", "linear"']),
        ("[model]\nwindow = 7", ["`window` must be even and at least 2", "but is 7"]),
        ("[model]\nwindow = 0", ["`window` must be even and at least 2", "but is 0"]),
        ("[model]\nfull_every = 1", ["`full_every` must be 0", "set `encoder_attention` to full"]),
        (
            "[model]\nencoder_attention = 'linear'\nattention_dropout = 0.1",
            ["`attention_dropout` must be 0", "forms no weights, but is 0.1"],
        ),
        ("[model]\nheads = 7", ["`heads` must divide `d_model` (256), but is 7"]),
        ("[training\n", ["not valid TOML", "line 1"]),
        ("x = " + "[" * 5000, ["not valid TOML"]),  # beyond what Python's parser can hold
        ("x = " + "9" * 5000, ["not valid TOML"]),
    ],
)
def test_a_refusal_names_file_key_and_remedy(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = write(tmp_path, text)
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("training.steps", "must look like section.key=value"),
        ("steps=3", "must look like section.key=value"),
        (".steps=3", "must look like section.key=value"),
        ("trainnig.steps=3", "did you mean `training`?"),
        ("training.step=3", "did you mean `steps`?"),
        ("training.steps=many", 'must be a whole number, but is "many"'),
        ("training.steps=-1", "must be at least 1, but is -1"),
        ("training.learning_rate=nan", "must be a number, but is NaN"),
        ("training.learning_rate=0", "must be above 0"),
        ("decoding.max_length_ratio=inf", "must be a number, but is Infinity"),
        ("training.seed=9223372036854775808", "must be below 2^63"),
        ("training.batch_tokens=99999999999999999999", "must be below 2^63"),
        ("model.encoder_layers=100000000", "must be at most 1000"),
        ("tokenizer.vocab_size=1", "must be at least 5"),
        ("tokenizer.vocab_size=9999999999", "must be below 2^31"),
        ("decoding.length_penalty=1e308", "at most 10"),
        ("decoding.beam=999999999999", "must be at most 10000"),
        ("training.steps=" + "9" * 5000, "must be a whole number"),
        ("training.steps=" + "[" * 5000, "must be a whole number"),
        ("model.size=enormous", "must be one of"),
        ("training.consistency=rdrop", 'must be one of "none", "r-drop", "simcut"'),
        ("training.consistency_weight=-1", "must be at least 0"),
        ("training.ema_decay=1", "must be at least 0 and below 1"),
        ("training.subword_dropout=1", "must be at least 0 and below 1"),
        ("training.subword_alpha=-0.1", "must be at least 0"),
        ("training.both_directions_steps=-1", "must be at least 0"),
        ("training.both_directions_steps=999999", "must be below `steps` (1200)"),
        ("training.cutoff=1", "must be at least 0 and below 1"),
    ],
)
def test_a_bad_override_is_blamed_on_itself(override: str, part: str) -> None:
    message = refusal("demo", override)
    assert message.startswith(f"--set {override}: ")
    assert part in message


def test_a_missing_file_is_refused_with_the_presets() -> None:
    message = refusal("nowhere.toml")
    assert message.startswith("--config nowhere.toml: neither a file nor a preset")
    assert "multi30k" in message


def test_a_file_that_is_not_utf8_is_refused_with_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "latin1.toml"
    path.write_bytes("# für\n".encode("latin-1"))
    assert refusal(path) == f"{path}: not UTF-8 at byte 3; save it as UTF-8"


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "bom.toml"
    path.write_bytes(b"\xef\xbb\xbf[training]\r\nsteps = 7\r\n")
    assert Settings.read(path).training.steps == 7


def test_a_file_states_only_what_differs(tmp_path: Path) -> None:
    read = Settings.read(write(tmp_path, "[decoding]\nbeam = 2\nlength_penalty = 1\n"))
    assert read == Settings(decoding=DecodingSettings(beam=2, length_penalty=1.0))
    assert isinstance(read.decoding.length_penalty, float)


@pytest.mark.parametrize("size", SIZES)
def test_a_size_stands_for_its_numbers_and_keys_beside_it_win(tmp_path: Path, size: str) -> None:
    model = Settings.read(write(tmp_path, f'[model]\nsize = "{size}"\ndropout = 0.25\n')).model
    assert model == ModelSettings(**(SIZES[size] | {"dropout": 0.25}))


def test_a_size_on_the_command_line_wins_over_the_numbers_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[model]\nd_model = 512\nheads = 8\nnorm = 'post'\n")
    model = Settings.read(path, ["model.size=tiny", "model.d_ff=300"]).model
    assert model == ModelSettings(**(SIZES["tiny"] | {"norm": "post", "d_ff": 300}))


@pytest.mark.parametrize(
    ("size", "numbers"), [("base", (512, 2048, 8, 0.1)), ("big", (1024, 4096, 16, 0.3))]
)
def test_base_and_big_are_the_papers(size: str, numbers: tuple[float, ...]) -> None:
    """Table 3 of Vaswani et al. 2017."""
    model = ModelSettings(**SIZES[size])
    assert (model.d_model, model.d_ff, model.heads, model.dropout) == numbers
    assert model.encoder_layers == model.decoder_layers == 6


def test_overrides_apply_in_order_and_flags_last() -> None:
    settings = load_settings(
        "demo", ["training.steps=5", "training.steps=6", "model.norm=post"], steps=7, beam=None
    )
    assert settings.training.steps == 7
    assert settings.model.norm == "post"
    assert settings.decoding == Settings.read("demo").decoding


def test_a_bad_flag_is_blamed_on_the_flag() -> None:
    with pytest.raises(SettingsError, match=r"^--length-penalty -1: `length_penalty` must be"):
        load_settings("demo", length_penalty=-1)
    with pytest.raises(SettingsError, match=r"^--steps 0: `steps` must be at least 1, but is 0"):
        load_settings(None, ["training.steps=3"], steps=0)


def test_every_flag_is_a_setting_of_the_same_name() -> None:
    sections = {field.name: field.default_factory for field in fields(Settings)}
    for flag, (section, key) in FLAGS.items():
        assert flag == key
        assert key in asdict(sections[section]())


def test_a_flag_that_looks_like_toml_stays_text() -> None:
    """A language named `no` or `1` is a string, unlike the value of `--set`."""
    assert load_settings(None, source="true").data.source == "true"


@pytest.mark.parametrize("preset", presets())
def test_a_preset_survives_writing_and_reading(
    tmp_path: Path, preset: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings.read(preset)
    dump_config(settings)
    assert Settings.read(write(tmp_path, capsys.readouterr().out)) == settings


@pytest.mark.parametrize(("preset", "width"), [("wmt14-base", 512), ("wmt14-big", 1024)])
def test_the_papers_presets_peak_where_its_schedule_does(preset: str, width: int) -> None:
    """Section 5.3: the rate is largest at the end of the warm-up."""
    settings = Settings.read(preset)
    peak = width**-0.5 * settings.training.warmup_steps**-0.5
    assert settings.model.d_model == width
    assert settings.training.learning_rate == pytest.approx(peak, rel=2e-3)
    assert 24_000 <= settings.training.batch_tokens * settings.training.accumulate <= 26_000


def test_an_override_is_toml_or_else_text() -> None:
    assert Override.parse('data.source="a b"').value == "a b"
    assert Override.parse("data.source= a b ").value == "a b"
    assert Override.parse("training.clip = 1e-3").value == 1e-3


@given(
    st.builds(
        TrainingSettings,
        steps=st.integers(1, 10**9),
        learning_rate=st.floats(min_value=1e-30, max_value=1e3),
        label_smoothing=st.floats(0, 0.999),
        schedule=st.sampled_from(["inverse_sqrt", "cosine"]),
        seed=st.integers(0, 2**62),
    )
)
def test_any_training_section_survives_writing_and_reading(training: TrainingSettings) -> None:
    settings = Settings(training=training)
    assert Settings.from_tables(tomllib.loads(settings.to_toml()), "test") == settings


@pytest.mark.parametrize(("source", "longest"), [(1, 12), (20, 50), (10_000, 256)])
def test_the_longest_target_follows_the_source_up_to_the_limit(source: int, longest: int) -> None:
    assert DecodingSettings().longest(source) == longest
