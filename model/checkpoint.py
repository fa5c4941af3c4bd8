"""The weights of a model on disk, and the model directory that makes them usable.

Weights are stored once, however many uses they have, with the architecture they belong to and the
tokenizer's fingerprint, so that a mix of files of two models is refused and not run.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tfm.data.errors import CheckpointError
from tfm.data.tokenizer import Tokenizer
from tfm.model.settings import ModelSettings, Settings
from tfm.model.tensor_file import read_tensors, write_tensors
from tfm.model.transformer import Transformer

CONFIG, TOKENIZER, WEIGHTS = "config.toml", "tokenizer.model", "model.safetensors"
# They change training, not what the weights mean.
NOT_STORED_IN_SHAPE = ("dropout", "attention_dropout")


class LoadedModel(NamedTuple):
    """A model directory in memory."""

    model: Transformer  # in eval mode
    tokenizer: Tokenizer
    settings: Settings


def load_model(directory: Path | str, *, device: torch.device | str = "cpu") -> LoadedModel:
    """Load the model that `tfm train -o DIRECTORY` left, in eval mode, on `device`.

    Raises:
        CheckpointError: if it is no model directory, or a file in it is damaged or does not fit.
        SettingsError, DataError: if its config.toml or tokenizer cannot be read.
    """
    directory = Path(directory)
    _require_model_directory(directory)
    settings = Settings.read(directory / CONFIG)
    tokenizer = Tokenizer.load(directory / TOKENIZER)
    stored = read_tensors(directory / WEIGHTS)
    # Before a network is built: a wrong number in config.toml could take all memory, or for ever.
    _require_architecture(
        stored.header,
        _architecture(
            settings.model, tokenizer.source_size, tokenizer.target_size, tokenizer.joint
        ),
        path=directory / WEIGHTS,
    )
    with _UninitialisedWeights():  # every one of them is about to be overwritten
        model = build_model(settings, tokenizer)
    fill_weights(model, stored.tensors, stored.header, path=directory / WEIGHTS)
    if stored.header.get("tokenizer") != tokenizer.fingerprint:
        raise CheckpointError(
            f"{directory / WEIGHTS}: trained with another tokenizer than the one beside it; "
            f"copy the whole model directory"
        )
    return LoadedModel(model.to(device).eval(), tokenizer, settings)


def build_model(settings: Settings, tokenizer: Tokenizer) -> Transformer:
    """Return a freshly initialised network for the vocabularies of `tokenizer`."""
    return Transformer(
        settings.model,
        source_vocab=tokenizer.source_size,
        target_vocab=tokenizer.target_size,
        joint=tokenizer.joint,
    )


def save_weights(path: Path, model: Transformer, header: Mapping[str, Any]) -> None:
    """Write the weights of `model` and the JSON-ready `header`, which names its `tokenizer`.

    Raises:
        CheckpointError: if it cannot be written; an older file of that name is intact then.
    """
    write_tensors(path, weights_of(model), {**header, "model": architecture_of(model)})


def load_weights(path: Path, model: Transformer) -> dict[str, Any]:
    """Fill `model` with the weights in `path` and return the header they were saved with.

    Raises:
        CheckpointError: if the file is missing, damaged, foreign, or of another architecture.
    """
    stored = read_tensors(path)
    fill_weights(model, stored.tensors, stored.header, path=path)
    return stored.header


def weights_of(model: Transformer) -> dict[str, Tensor]:
    """Return the weights by name; a matrix with several uses stands there once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def architecture_of(model: Transformer) -> dict[str, Any]:
    """Return what the shapes and the meaning of the weights follow from, JSON-ready."""
    return _architecture(model.settings, model.source_vocab, model.target_vocab, model.joint)


def fill_weights(
    model: Transformer, tensors: Mapping[str, Tensor], header: Mapping[str, Any], *, path: Path
) -> None:
    """Copy `tensors` into the weights of `model`, once every name and shape is known to fit.

    Raises:
        CheckpointError: if one is missing, unknown or of another shape; `path` is named.
    """
    require_fitting(model, tensors, header, path=path)
    for name, weight in weights_of(model).items():
        weight.copy_(tensors[name])


def require_fitting(
    model: Transformer, tensors: Mapping[str, Tensor], header: Mapping[str, Any], *, path: Path
) -> None:
    """Refuse tensors that are not the weights of `model`, as `fill_weights` does."""
    _require_architecture(header, architecture_of(model), path=path)
    weights = weights_of(model)
    for name in weights.keys() ^ tensors.keys():
        problem = "no tensor" if name in weights else "an unknown tensor"
        raise CheckpointError(f"{path}: {problem} `{name}`; copy or train the model again")
    for name, weight in weights.items():
        if weight.shape != tensors[name].shape:
            raise CheckpointError(
                f"{path}: `{name}` has shape {list(tensors[name].shape)}, but the model needs "
                f"{list(weight.shape)}; copy or train the model again"
            )


def _architecture(
    settings: ModelSettings, source_vocab: int, target_vocab: int, joint: bool
) -> dict[str, Any]:
    kept = {key: value for key, value in asdict(settings).items() if key not in NOT_STORED_IN_SHAPE}
    return kept | {"source_vocab": source_vocab, "target_vocab": target_vocab, "joint": joint}


def _require_architecture(
    header: Mapping[str, Any], architecture: Mapping[str, Any], *, path: Path
) -> None:
    # A key younger than the file had its default when the weights were trained.
    found = asdict(ModelSettings()) | header.get("model", {})
    for key, value in architecture.items():
        if found.get(key) != value:
            raise CheckpointError(
                f"{path}: these weights have {key} = {found.get(key)!r}, but the settings and "
                f"tokenizer beside them say {value!r}; restore the directory's own {CONFIG}"
            )


def _require_model_directory(directory: Path) -> None:
    if not directory.is_dir():
        problem = "a file, not a directory" if directory.exists() else "no such directory"
        raise CheckpointError(f"{directory}: {problem}; MODEL is what `tfm train -o MODEL` makes")
    tokenizers = [directory / TOKENIZER, directory / "tokenizer.source.model"]
    missing = [name for name in (CONFIG, WEIGHTS) if not (directory / name).is_file()]
    missing += [] if any(path.is_file() for path in tokenizers) else [TOKENIZER]
    if missing == [WEIGHTS] and (directory / "checkpoints").is_dir():
        raise CheckpointError(
            f"{directory}: no {WEIGHTS} yet; training writes it at its first validation, or at its "
            "first checkpoint where there is no validation corpus, but not while it learns the way "
            "back"
        )
    if missing:
        raise CheckpointError(
            f"{directory}: not a model directory: no {', '.join(missing)}; "
            f"`tfm train -o DIRECTORY` makes one"
        )


class _UninitialisedWeights(TorchFunctionMode):
    """Leave new weights as memory gives them: drawing them would double the loading time."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in (Tensor.uniform_, Tensor.normal_) or _is_initialiser(func):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _is_initialiser(func: Any) -> bool:
    return getattr(func, "__module__", None) == "torch.nn.init"
