"""Files of tensors: safetensors with one JSON object in the header, and no pickle anywhere.

A file is written under a temporary name, synced and renamed, so that after a crash at any moment
either the old or the new one is there, whole. A checksum over names, shapes, bytes and the JSON
tells a damaged file from a sound one, wherever the damage is.
"""

import json
import os
import struct
import zlib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tfm.data.errors import CheckpointError, DataError
from tfm.data.lines import atomic_writer, writing

FORMAT = 1  # raised when older files can no longer be read
# What safetensors calls the types that weights and optimizers have, and positions in a corpus.
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.uint8: "U8",
}


class Stored(NamedTuple):
    """The content of a file: tensors by name, and the JSON object of its header."""

    tensors: dict[str, Tensor]
    header: dict[str, Any]


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Replace `path` by a file of `tensors` and `header` in one step that a crash cannot halve.

    Raises:
        CheckpointError: if it cannot be written; an older file of that name is intact then.
    """
    header = {"format": FORMAT, "tfm": tfm_version(), **header}
    header["checksum"] = _checksum(tensors, header)
    try:
        with atomic_writer(path, binary=True) as file:
            _write_safetensors(file, tensors, {"tfm": json.dumps(header)})
        with writing(path, opened=path.parent):
            _sync(path.parent)  # the new name must survive a power cut too
    except DataError as error:
        raise CheckpointError(str(error)) from error


def _write_safetensors(
    file: IO[bytes], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write one tensor after the other: the library would build the file in memory first.

    A file is the length of a JSON object in 8 bytes, that object, padded, and all bytes.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # aligned
    places: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name in names:
        tensor, begin = tensors[name], end
        end += tensor.nbytes
        places[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(places, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for name in names:
        file.write(_bytes_of(tensors[name]))


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor, without a copy if it is contiguous on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def read_tensors(path: Path) -> Stored:
    """Read a file of `write_tensors` and check it bit by bit. Nothing in it is ever executed.

    Raises:
        CheckpointError: if it is missing, damaged, cut short, of a later format, or not ours.
    """
    try:
        # The tensors are copied out of the mapped file: it may be replaced while they live.
        with safe_open(path, framework="pt") as file:
            found = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; `tfm train` writes it") from None
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: {_diagnose(path)} ({error})") from None
    header = _parse_header(path, found)
    checksum = header.pop("checksum", None)
    if checksum != _checksum(tensors, header):
        raise CheckpointError(f"{path}: damaged (its checksum is wrong); copy or train it again")
    return Stored(tensors, header)


def tfm_version() -> str:
    """Return the installed version, or `unknown` for a source tree that is not installed."""
    try:
        return metadata.version("tfm")
    except metadata.PackageNotFoundError:
        return "unknown"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> int:
    value = zlib.crc32(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        value = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), value)
        value = zlib.crc32(_bytes_of(tensor), value)
    return value


def _parse_header(path: Path, found: Mapping[str, str]) -> dict[str, Any]:
    try:
        header = json.loads(found["tfm"])
    except (KeyError, ValueError, RecursionError):
        raise CheckpointError(
            f"{path}: a safetensors file, but not one that tfm wrote (or its header is damaged)"
        ) from None
    if not isinstance(header, dict) or not isinstance(header.get("format"), int):
        raise CheckpointError(f"{path}: its header is damaged; copy or train it again")
    if header["format"] > FORMAT:
        raise CheckpointError(
            f"{path}: format {header['format']}, but this tfm reads up to {FORMAT}; upgrade tfm"
        )
    return header


def _diagnose(path: Path) -> str:
    if path.is_dir():
        return "a directory, not a file"
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except OSError:
        return "cannot be read"
    is_safetensors = start[8:] == b"{"  # after the length of the header, in 8 bytes
    if start.startswith((b"\x80", b"PK")) and not is_safetensors:
        return "a pickle, which could run code and is never loaded; tfm reads safetensors only"
    return "damaged, cut short, or not a safetensors file; copy or train it again"
