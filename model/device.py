"""Where and in which precision the network runs."""

import torch

from tfm.data.errors import BackendError

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_device(name: str) -> torch.device:
    """Return the device called `name`; `auto` is CUDA where there is one.

    Raises:
        BackendError: if the name is unknown or the device is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BackendError(f"--device {name}: unknown; valid: auto, cpu, cuda, cuda:N") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BackendError(f"--device {name}: no CUDA GPU is available; use --device cpu")
    return device


def resolve_precision(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of matrix products; `auto` is bf16 on GPUs that have it, fp32 elsewhere.

    Raises:
        BackendError: if the name is unknown or the device cannot compute in it.
    """
    if name == "auto":
        half = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if half else torch.float32
    if name not in PRECISIONS:
        raise BackendError(f"--precision {name}: unknown; valid: auto, {', '.join(PRECISIONS)}")
    if name == "fp16" and device.type == "cpu":
        raise BackendError("--precision fp16: needs a CUDA GPU; use bf16 or fp32 on a CPU")
    return PRECISIONS[name]
