"""Files of tensors: whole or refused, never executed, and replaced in one step."""

import json
import os
import pickle
import re
import resource
import shutil
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save, save_file

from tfm.data.corpus import Pair
from tfm.data.errors import CheckpointError
from tfm.data.tokenizer import Tokenizer, train_tokenizer
from tfm.model.checkpoint import build_model, load_model, load_weights, save_weights, weights_of
from tfm.model.settings import Settings
from tfm.model.tensor_file import read_tensors, write_tensors
from tfm.model.transformer import Transformer

ROOT = Path(__file__).resolve().parent.parent

SETTINGS = Settings.from_tables(
    {
        "tokenizer": {"vocab_size": 300},
        "model": {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
    },
    "test",
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = ["a dog runs", "ein hund rennt", "the cat sees a dog", "die katze sieht den hund"]
    return train_tokenizer([Pair(text, text) for text in texts], SETTINGS.tokenizer)


@pytest.fixture
def model(tokenizer: Tokenizer) -> Transformer:
    torch.manual_seed(1)
    return build_model(SETTINGS, tokenizer)


@pytest.fixture
def directory(tmp_path: Path, model: Transformer, tokenizer: Tokenizer) -> Path:
    """Make a model directory by hand, as the contract of the format says."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.toml").write_text(SETTINGS.to_toml())
    tokenizer.save(path / "tokenizer.model")
    save_weights(path / "model.safetensors", model, {"tokenizer": tokenizer.fingerprint})
    return path


def tensors() -> dict[str, torch.Tensor]:
    return {
        "a": torch.arange(6, dtype=torch.float32).view(2, 3),
        "b": torch.tensor(3.5),
        "c": torch.tensor([1, 2, 255], dtype=torch.uint8),
        "d": torch.ones(4, dtype=torch.bfloat16),
    }


def test_tensors_and_header_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    header = {"text": 'ü\n\u2028"', "numbers": [1, 2.5, None], "nested": {"a": True}}
    write_tensors(path, tensors(), header)
    stored = read_tensors(path)
    assert stored.tensors.keys() == tensors().keys()
    for name, tensor in tensors().items():
        assert torch.equal(stored.tensors[name], tensor)
        assert stored.tensors[name].dtype == tensor.dtype
    assert {key: stored.header[key] for key in header} == header


def test_a_file_is_what_the_library_of_the_format_writes(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, tensors() | {"none": torch.zeros(0, 3)}, {"text": "ü"})
    with safe_open(path, framework="pt") as file:
        found, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()
    whole = path.read_bytes()
    assert len(whole) == len(save(found, metadata))
    start = 8 + struct.unpack("<Q", whole[:8])[0]
    header, theirs = (json.loads(data[8:start]) for data in (whole, save(found, metadata)))
    assert header == theirs and whole[start:] == save(found, metadata)[start:]


def test_writing_a_file_takes_little_memory(tmp_path: Path) -> None:
    """What torch holds is not counted, what Python makes of it is."""
    large = {str(i): torch.rand(500_000) for i in range(8)}
    tracemalloc.start()
    try:
        write_tensors(tmp_path / "x.safetensors", large, {})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < large["0"].nbytes, "less than one of the tensors"


def test_a_loaded_model_equals_the_saved_one(directory: Path, model: Transformer) -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    loaded = load_model(directory)
    assert torch.equal(torch.get_rng_state(), state), "loading draws no random numbers"
    assert not loaded.model.training
    assert loaded.settings == SETTINGS
    for name, weight in weights_of(model).items():
        assert torch.equal(weights_of(loaded.model)[name], weight)
    for name, buffer in model.named_buffers():
        assert torch.equal(dict(loaded.model.named_buffers())[name], buffer)


def test_tied_matrices_are_stored_once_and_tied_again(
    directory: Path, tokenizer: Tokenizer
) -> None:
    stored = read_tensors(directory / "model.safetensors").tensors
    assert [name for name in stored if "embedding" in name] == ["target_embedding.weight"]
    loaded = load_model(directory).model
    assert loaded.source_embedding.weight is loaded.target_embedding.weight


def test_a_moved_directory_works(directory: Path, tmp_path: Path) -> None:
    before = weights_of(load_model(directory).model)
    elsewhere = tmp_path / "else" / "where"
    shutil.copytree(directory, elsewhere)
    shutil.rmtree(directory)
    after = weights_of(load_model(elsewhere).model)
    assert all(torch.equal(before[name], after[name]) for name in before)


# Damage


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, tensors(), {"step": 7})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="x.safetensors: .*(damaged|header)"):
            read_tensors(path)


def test_every_flipped_bit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, tensors(), {"step": 7})
    whole = path.read_bytes()
    padding = whole[: 8 + struct.unpack("<Q", whole[:8])[0]].rstrip(b" ")
    for place in [*range(len(padding)), *range(len(whole) - 47, len(whole))]:
        for bit in (0, 4, 7):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError, match="x.safetensors: "):
                read_tensors(path)


def test_the_message_is_one_line_that_names_file_and_remedy(directory: Path) -> None:
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointError) as caught:
        load_model(directory)
    message = str(caught.value)
    assert str(weights) in message and "copy or train it again" in message
    assert "\n" not in message


def test_a_pickle_is_refused_and_not_executed(directory: Path) -> None:
    weights, trap = directory / "model.safetensors", directory / "trap"

    class Trap:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
            return os.mkdir, (str(trap),)

    weights.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(CheckpointError, match="pickle.*never loaded.*safetensors"):
        load_model(directory)
    torch.save({"a": torch.ones(2)}, weights)
    with pytest.raises(CheckpointError, match="pickle.*never loaded.*safetensors"):
        load_model(directory)
    assert not trap.exists()


def test_our_code_imports_no_pickle() -> None:
    forbidden = re.compile(
        r"\b(pickle|shelve|marshal|joblib|dill)\b.*\bimport\b|"
        r"\bimport\b.*\b(pickle|shelve|marshal|joblib|dill)\b|"
        r"torch\.(load|save)\(|allow_pickle=True|\byaml\.load\b"
    )
    files = [path for folder in ("cli", "data", "model") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 20
    for path in files:
        assert not forbidden.search(path.read_text("utf-8")), path


def test_a_foreign_safetensors_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign.safetensors"
    save_file({"a": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match="foreign.safetensors: .*not one that tfm wrote"):
        read_tensors(path)
    path.write_text("hello " * 100)
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        read_tensors(path)
    with pytest.raises(CheckpointError, match="a directory, not a file"):
        read_tensors(tmp_path)
    with pytest.raises(CheckpointError, match="missing: no such file"):
        read_tensors(tmp_path / "missing")


def test_a_later_format_says_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {}, {"format": 99})
    with pytest.raises(CheckpointError, match="format 99.*upgrade tfm"):
        read_tensors(path)


# What does not belong together


def test_weights_of_another_architecture_are_refused(directory: Path, tokenizer: Tokenizer) -> None:
    # Four heads instead of two change no shape, but what the weights mean.
    other = replace(SETTINGS, model=replace(SETTINGS.model, heads=4))
    (directory / "config.toml").write_text(other.to_toml())
    with pytest.raises(CheckpointError, match=r"model.safetensors: .*heads = 2.*4.*config.toml"):
        load_model(directory)
    with pytest.raises(CheckpointError, match="d_model = 16"):
        wider = replace(SETTINGS, model=replace(SETTINGS.model, d_model=32))
        load_weights(directory / "model.safetensors", build_model(wider, tokenizer))


@pytest.mark.parametrize("change", [{"d_model": 10**12}, {"d_ff": 10**15}])
def test_a_wrong_size_in_the_settings_is_refused_before_memory_is_asked_for(
    directory: Path, change: dict[str, int]
) -> None:
    other = replace(SETTINGS, model=replace(SETTINGS.model, **change))
    (directory / "config.toml").write_text(other.to_toml())
    with pytest.raises(CheckpointError, match=r"these weights have d_.*restore"):
        load_model(directory)


def test_weights_older_than_a_model_setting_have_its_default(directory: Path) -> None:
    """Or each new key of [model] would shut out every directory written before it."""
    path = directory / "model.safetensors"
    stored = read_tensors(path)
    del stored.header["model"]["activation"]
    write_tensors(path, stored.tensors, stored.header)
    load_model(directory)
    other = replace(SETTINGS, model=replace(SETTINGS.model, activation="gelu"))
    (directory / "config.toml").write_text(other.to_toml())
    with pytest.raises(CheckpointError, match="activation = 'relu'.*'gelu'"):
        load_model(directory)


def test_a_directory_from_before_attention_had_forms_is_full(directory: Path) -> None:
    path, new = directory / "model.safetensors", ("encoder_attention", "window", "full_every")
    stored = read_tensors(path)
    for key in new:
        del stored.header["model"][key]
    write_tensors(path, stored.tensors, stored.header)
    lines = SETTINGS.to_toml().splitlines()
    (directory / "config.toml").write_text(
        "\n".join(line for line in lines if not line.startswith(new))
    )
    assert load_model(directory).settings.model.encoder_forms == ("full",)
    local = replace(SETTINGS, model=replace(SETTINGS.model, encoder_attention="local"))
    (directory / "config.toml").write_text(local.to_toml())
    with pytest.raises(CheckpointError, match="encoder_attention = 'full'.*'local'"):
        load_model(directory)


def test_dropout_is_no_part_of_the_architecture(directory: Path) -> None:
    before = weights_of(load_model(directory).model)
    other = replace(SETTINGS, model=replace(SETTINGS.model, dropout=0.5))
    (directory / "config.toml").write_text(other.to_toml())
    loaded = load_model(directory)
    assert loaded.settings.model.dropout == 0.5
    after = weights_of(loaded.model)
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


@pytest.mark.parametrize("change", ["missing", "unknown", "shape"])
def test_tensors_that_do_not_fit_are_named(
    directory: Path, model: Transformer, change: str
) -> None:
    path = directory / "model.safetensors"
    stored = read_tensors(path)
    changed = dict(stored.tensors)
    name = "decoder.0.feed_forward.inner.bias"
    if change == "missing":
        del changed[name]
    elif change == "unknown":
        changed["surprise"] = torch.ones(1)
    else:
        changed[name] = torch.ones(3)
    write_tensors(path, changed, stored.header)
    before = {name: weight.clone() for name, weight in weights_of(model).items()}
    expected = {
        "missing": f"no tensor `{name}`",
        "unknown": "`surprise`",
        "shape": r"\[3\].*\[32\]",
    }
    with pytest.raises(CheckpointError, match=expected[change]):
        load_weights(path, model)
    assert all(torch.equal(before[n], w) for n, w in weights_of(model).items())


def test_another_tokenizer_is_refused(directory: Path) -> None:
    other = train_tokenizer([Pair("something else", "etwas anderes")] * 3, SETTINGS.tokenizer)
    smaller = replace(SETTINGS.tokenizer, vocab_size=290)
    for changed in (other, train_tokenizer([Pair("x y z", "ä ö ü")] * 3, smaller)):
        changed.save(directory / "tokenizer.model")
        with pytest.raises(CheckpointError, match="model.safetensors: .*tokenizer"):
            load_model(directory)


def test_what_is_no_model_directory_is_named(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere: no such directory; .*tfm train"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="config.toml: a file, not a directory"):
        load_model(directory / "config.toml")
    with pytest.raises(CheckpointError, match="no config.toml, model.safetensors, tokenizer.model"):
        load_model(tmp_path)
    (directory / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="not a model directory: no model.safetensors"):
        load_model(directory)
    (directory / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match="no model.safetensors yet.*first validation"):
        load_model(directory)


# Writing


@contextmanager
def small_disk(limit: int) -> Iterator[None]:
    """Let files of this process grow to `limit` bytes only, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_leaves_the_older_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, tensors(), {"step": 1})
    whole = path.read_bytes()
    with small_disk(4096), pytest.raises(CheckpointError, match="x.safetensors: .*cannot be writ"):
        write_tensors(path, {"large": torch.zeros(10_000)}, {"step": 2})
    assert path.read_bytes() == whole
    assert [place.name for place in tmp_path.iterdir()] == ["x.safetensors"]


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_crash_before_the_renaming_leaves_the_older_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, tensors(), {"step": 1})

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, function, crash)
    with pytest.raises(KeyboardInterrupt):
        write_tensors(path, tensors(), {"step": 2})
    assert read_tensors(path).header["step"] == 1


def test_a_file_is_synced_before_it_is_renamed_and_the_directory_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, os.replace

    def log_fsync(descriptor: int) -> None:
        target = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        events.append("directory" if target.is_dir() else "file")
        fsync(descriptor)

    def log_rename(*arguments: object) -> None:
        events.append("rename")
        rename(*arguments)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "fsync", log_fsync)
    monkeypatch.setattr(os, "replace", log_rename)
    write_tensors(tmp_path / "x.safetensors", tensors(), {})
    assert events == ["file", "rename", "directory"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file/x.safetensors: cannot be written"):
        write_tensors(tmp_path / "file" / "x.safetensors", tensors(), {})


def test_files_have_the_usual_permissions(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, tensors(), {})
    (tmp_path / "usual").write_text("")
    assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_the_header_is_readable_without_tfm(directory: Path) -> None:
    content = (directory / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["tfm"])
    assert header["format"] == 1 and header["model"]["d_model"] == 16
