"""What a run is, as opposed to how it is carried on; and the record of what it was made from.

Continuing needs the same data, tokenizer, network, seed and phases, and the same validation: the
best score so far counts only beside scores of the same sentences and the same search. All else may
change: how long, how fast and how precisely to train, in which batches, with which dropout.
"""

import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from tfm.data.batching import EncodedCorpus
from tfm.data.errors import CheckpointError
from tfm.data.lines import atomic_writer
from tfm.model.checkpoint import NOT_STORED_IN_SHAPE
from tfm.model.decoding import DecodingSettings
from tfm.model.settings import PHASES, Settings
from tfm.model.tensor_file import tfm_version

FIXED = {
    "data": ("source", "target", "max_length"),
    "tokenizer": ("vocab_size", "kind", "separate"),
    "training": ("seed", "validate_sentences", *PHASES),
    # Batches change no translation.
    "decoding": tuple(f.name for f in fields(DecodingSettings) if f.name != "batch_tokens"),
}
LIBRARIES = ("numpy", "sacrebleu", "safetensors", "sentencepiece", "torch")

Identity = dict[str, Any]


@dataclass(frozen=True)
class CorpusRecord:
    """A corpus as provenance.json tells of it."""

    corpus: str  # as given, but a path only by its last part: no names of users or machines
    fingerprint: str  # SHA-256 of the text
    pairs: int  # used
    dropped: dict[str, int]  # by reason

    @classmethod
    def of(cls, corpus: str, fingerprint: str, encoded: EncodedCorpus) -> "CorpusRecord":
        """Describe the corpus called `corpus`."""
        return cls(_without_place(corpus), fingerprint, len(encoded), dict(encoded.dropped))


def _without_place(corpus: str) -> str:
    """Return a corpus string whose path, if it has one, is cut to the last part."""
    if not corpus.startswith("hf:"):
        return Path(corpus).name
    kind, name, *rest = corpus.split(":")
    local = name.startswith((".", "/", "~"))  # and not the name of a data set, as in user/name
    return ":".join([kind, Path(name).name if local else name, *rest])


def identify_settings(settings: Settings) -> Identity:
    """Return the settings that must not change when a run continues, flat and JSON-ready.

    Where there are phases, each of them has its steps or its share of the time: with another time
    the run would find itself in another phase than the one where it stopped.
    """
    sections, training = asdict(settings), settings.training
    fixed = {
        f"{section}.{key}": sections[section][key]
        for section, keys in FIXED.items()
        for key in keys
    }
    fixed["training.time"] = training.time if training.phased else 0.0
    if training.phased and training.time:
        fixed["training.steps"] = training.steps
    model = sections["model"].items()
    return fixed | {f"model.{key}": value for key, value in model if key not in NOT_STORED_IN_SHAPE}


def identify(
    settings: Settings, *, tokenizer: str, train: CorpusRecord, valid: CorpusRecord | None
) -> Identity:
    """Return all that must not change when a run continues, flat and JSON-ready.

    Args:
        tokenizer: its fingerprint.
    """
    corpora = {
        "training corpus": train.fingerprint,
        "validation corpus": valid.fingerprint if valid else "none",
    }
    return identify_settings(settings) | corpora | {"tokenizer": tokenizer}


def require_same_run(
    stored: Mapping[str, Any], now: Identity, *, directory: Path, tell: Callable[[str], None]
) -> None:
    """Refuse to continue another run than the one whose identity is `stored`.

    Args:
        now: the identity of this one, or the part of it that is known already.
        tell: hears one line for each key that differs, with both values.

    Raises:
        CheckpointError: names each key that differs.
    """
    # A setting younger than the run had its default in it.
    then = identify_settings(Settings()) | dict(stored)
    different = [key for key, value in now.items() if then.get(key, value) != value]
    for key in different:
        tell(f"{key}: {_short(then[key])} -> {_short(now[key])}")
    if different:
        raise CheckpointError(
            f"{directory}: holds a run in which {', '.join(different)} must not change; "
            f"repeat its command or choose another -o"
        )


def changes(before: Settings, after: Settings) -> list[str]:
    """Return one phrase for each setting that differs, such as `training.steps 800 -> 1600`."""
    old, new = asdict(before), asdict(after)
    return [
        f"{section}.{key} {old[section][key]} -> {value}"
        for section, table in new.items()
        for key, value in table.items()
        if old[section][key] != value
    ]


def write_provenance(
    path: Path,
    settings: Settings,
    *,
    tokenizer: str,
    train: CorpusRecord,
    valid: CorpusRecord | None,
    sitting: Mapping[str, Any],
) -> None:
    """Write what the model is made from, and add a sitting to those that the file tells of.

    Args:
        tokenizer: its fingerprint.
        sitting: the step at which one begins, and where and how precisely it computes.
    """
    record = {
        "tfm": tfm_version(),
        "seed": settings.training.seed,
        "tokenizer": tokenizer,
        "train": asdict(train),
        "valid": asdict(valid) if valid else None,
        "settings": asdict(settings),
        "sittings": [*earlier_sittings(path), {**sitting, **_software()}],
    }
    with atomic_writer(path) as file:
        file.write(json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def _software() -> dict[str, Any]:
    return {
        "tfm": tfm_version(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "libraries": {name: metadata.version(name) for name in LIBRARIES},
    }


def earlier_sittings(path: Path) -> list[dict[str, Any]]:
    """Return what provenance.json tells of the sittings so far, oldest first."""
    try:
        found = json.loads(path.read_text("utf-8"))["sittings"]
        return [sitting for sitting in found if isinstance(sitting, dict)]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []  # a new run, or a file that someone has edited: it is a record, not state


def _short(value: object) -> str:
    text = str(value)
    return f"{text[:12]}..." if len(text) == 64 else text  # a fingerprint
