"""Where and in which precision the network runs."""

import re

import torch

from tfm.data.errors import BackendError

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_device(name: str) -> torch.device:
    """Return the device called `name`; `auto` is CUDA where there is one.

    Raises:
        BackendError: if the name is unknown or the device is not there.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda" if gpus else "cpu")
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", name)
    if match is None:
        raise BackendError(f"--device {name}: unknown; valid: auto, cpu, cuda, cuda:N")
    if name != "cpu" and not gpus:
        raise BackendError(f"--device {name}: no CUDA GPU is available; use --device cpu")
    if int(match[1] or 0) >= max(gpus, 1):
        raise BackendError(f"--device {name}: there is no such GPU; the last is cuda:{gpus - 1}")
    return torch.device(name)


def resolve_precision(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of matrix products; `auto` is bf16 on GPUs that have it, fp32 elsewhere.

    Raises:
        BackendError: if the name is unknown or the device cannot compute in it.
    """
    bf16 = device.type == "cpu" or torch.cuda.get_device_capability(device) >= (8, 0)
    if name == "auto":
        return torch.bfloat16 if bf16 and device.type == "cuda" else torch.float32
    if name not in PRECISIONS:
        raise BackendError(f"--precision {name}: unknown; valid: auto, {', '.join(PRECISIONS)}")
    if name == "fp16" and device.type == "cpu":
        raise BackendError("--precision fp16: needs a CUDA GPU; use bf16 or fp32 on a CPU")
    if name == "bf16" and not bf16:
        gpu = torch.cuda.get_device_name(device)
        raise BackendError(f"--precision bf16: {gpu} has no bf16 arithmetic; use fp16 or fp32")
    return PRECISIONS[name]
