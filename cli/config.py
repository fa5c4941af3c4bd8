"""Settings as the command line gives them: a file or preset, then `--set`, then the flags."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tfm.cli import console
from tfm.cli.decoding import DECODING_FLAGS
from tfm.data.errors import CheckpointError, SettingsError
from tfm.model.settings import Override, Settings

if TYPE_CHECKING:
    from tfm.model.translator import Translator

# The flags that are settings, because they change from run to run.
FLAGS = {
    "source": ("data", "source"),
    "target": ("data", "target"),
    "steps": ("training", "steps"),
    "time": ("training", "time"),
    "seed": ("training", "seed"),
    "beam": ("decoding", "beam"),
    "length_penalty": ("decoding", "length_penalty"),
    "max_length": ("decoding", "max_length"),
    "mbr": ("decoding", "mbr"),
    **{key: ("decoding", key) for key in DECODING_FLAGS},
}


def load_settings(
    config: str | None, set_: list[str] | None = None, **flags: int | float | str | None
) -> Settings:
    """Read `config` and apply `--set` and then the flags: where both name a key, the flag wins.

    Args:
        flags: values under the names in `FLAGS`; None means not given.

    Raises:
        SettingsError: names the file, the `--set` or the flag that is at fault.
    """
    return Settings.read(config, overrides_of(set_, **flags))


def overrides_of(
    set_: list[str] | None = None, **flags: int | float | str | None
) -> list[str | Override]:
    """Return what `--set` and the flags change of any settings, in the order of `load_settings`."""
    given = [
        Override(*FLAGS[name], value, f"--{name.replace('_', '-')} {value}")
        for name, value in flags.items()
        if value is not None
    ]
    return [*(set_ or []), *given]


def dump_config(settings: Settings) -> None:
    """Print all settings as the TOML file that gives them (`--dump-config`)."""
    print(settings.to_toml(), end="")


def model_config(model: Path) -> str:
    """Return the settings file of a model directory: what `load_settings` starts from.

    Raises:
        CheckpointError: if there is none.
    """
    path = model / "config.toml"
    if not model.exists():
        raise CheckpointError(
            f"{model}: no such directory; MODEL is what `tfm train -o MODEL` makes"
        )
    if not path.is_file():
        raise CheckpointError(
            f"{model}: not a model directory: no config.toml; `tfm train -o MODEL` makes one"
        )
    return str(path)


def load_translator(
    model: Path,
    settings: Settings,
    *,
    ensemble: Sequence[Path] | None = None,
    device: str,
    precision: str,
    attention: str,
    quantize: str = "none",
    searches: bool = True,
) -> "Translator":
    """Load a model directory to decode as `settings` say, and note what it runs on.

    Args:
        ensemble: other model directories, which are asked together with the first.
        searches: whether the notes are to tell how it searches.

    Raises:
        SettingsError: if they differ from the model's in more than decoding and languages.
        CheckpointError, BackendError: as `Translator.load` does.
    """
    from tfm.model.memory import keep_freed_memory
    from tfm.model.translator import Translator

    keep_freed_memory()
    translator = Translator.load(
        model,
        ensemble=ensemble or (),
        device=device,
        precision=precision,
        attention=attention,
        quantize=quantize,
    )
    own = translator.settings
    if (settings.data.target, settings.data.source) == (own.data.source, own.data.target):
        raise SettingsError(
            f"--source, --target: {model} translates {own.data.source} to {own.data.target}, "
            "not the other way round"
        )
    data = replace(settings.data, source=own.data.source, target=own.data.target)
    if replace(settings, data=data, decoding=own.decoding) != own:
        raise SettingsError("--set: only [decoding] can be changed once a model is trained")
    translator.decoding, translator.warn = settings.decoding, console.warn
    for line in translator.describe(searches=searches):
        console.note(line)
    return translator
