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
    match = re.fullmatch(r"cpu|cuda(?::([0-9]{1,9}))?", name)
    if match is None:
        raise BackendError(f"--device {name}: unknown; valid: auto, cpu, cuda, cuda:N")
    if name != "cpu" and not gpus:
        raise BackendError(f"--device {name}: no CUDA GPU is available; use --device cpu")
    if int(match[1] or 0) >= max(gpus, 1):
        raise BackendError(f"--device {name}: there is no such GPU; the last is cuda:{gpus - 1}")
    return torch.device(name)


def resolve_precision(name: str, device: torch.device, *, training: bool = False) -> torch.dtype:
    """Return the dtype of matrix products.

    `auto` is bf16 on GPUs that have it, and for training on CPUs with bf16 instructions, where it
    makes steps up to twice as fast (weights and sums stay fp32); fp32 everywhere else.

    Raises:
        BackendError: if the name is unknown or the device cannot compute in it.
    """
    bf16 = device.type == "cpu" or torch.cuda.get_device_capability(device) >= (8, 0)
    if name == "auto":
        fast = bf16 if device.type == "cuda" else training and cpu_multiplies_bf16()
        return torch.bfloat16 if fast else torch.float32
    if name not in PRECISIONS:
        raise BackendError(f"--precision {name}: unknown; valid: auto, {', '.join(PRECISIONS)}")
    if name == "fp16" and device.type == "cpu":
        raise BackendError("--precision fp16: needs a CUDA GPU; use bf16 or fp32 on a CPU")
    if name == "bf16" and not bf16:
        gpu = torch.cuda.get_device_name(device)
        raise BackendError(f"--precision bf16: {gpu} has no bf16 arithmetic; use fp16 or fp32")
    return PRECISIONS[name]


def cpu_multiplies_bf16() -> bool:
    """Return whether this CPU has bf16 instructions; without them bf16 is slower than fp32.

    Only those of x86 are known here: any other CPU counts as one without.
    """
    features = torch.cpu.get_capabilities()
    return any(features.get(name) for name in ("avx512_bf16", "amx_bf16"))
