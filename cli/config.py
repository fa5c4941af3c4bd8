"""Settings as the command line gives them: a file or preset, then `--set`, then the flags."""

from tfm.model.settings import Override, Settings

# The flags that are settings, because they change from run to run.
FLAGS = {
    "source": ("data", "source"),
    "target": ("data", "target"),
    "steps": ("training", "steps"),
    "seed": ("training", "seed"),
    "beam": ("decoding", "beam"),
    "length_penalty": ("decoding", "length_penalty"),
    "max_length": ("decoding", "max_length"),
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
    given = [
        Override(*FLAGS[name], value, f"--{name.replace('_', '-')} {value}")
        for name, value in flags.items()
        if value is not None
    ]
    return Settings.read(config, [*(set_ or []), *given])


def dump_config(settings: Settings) -> None:
    """Print all settings as the TOML file that gives them (`--dump-config`)."""
    print(settings.to_toml(), end="")
