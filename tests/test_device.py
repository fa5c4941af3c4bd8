"""Device and precision: a name is honoured or refused in one line with a remedy."""

import pytest
import torch

from tfm.data.errors import BackendError
from tfm.model.device import resolve_device, resolve_precision

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def gpus(monkeypatch):
    """Return a function that makes torch believe in so many GPUs of the given capability."""

    def pretend(count, capability=(9, 0)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Tesla T4")

    return pretend


@pytest.mark.parametrize(
    "count, name, device",
    [
        (0, "auto", "cpu"),
        (0, "cpu", "cpu"),
        (2, "auto", "cuda"),
        (2, "cpu", "cpu"),
        (2, "cuda", "cuda"),
        (2, "cuda:1", "cuda:1"),
    ],
)
def test_a_device_that_is_there_is_used(gpus, count, name, device):
    gpus(count)
    assert resolve_device(name) == torch.device(device)


@pytest.mark.parametrize(
    "count, name, message",
    [
        (0, "cuda", "no CUDA GPU is available; use --device cpu"),
        (0, "cuda:0", "no CUDA GPU is available; use --device cpu"),
        (2, "cuda:2", "there is no such GPU; the last is cuda:1"),
        (2, "mps", "unknown; valid: auto, cpu, cuda, cuda:N"),
        (2, "gpu", "unknown; valid"),
        (2, "cpu:1", "unknown; valid"),
        (2, "cuda:", "unknown; valid"),
        (2, "", "unknown; valid"),
    ],
)
def test_any_other_device_is_refused(gpus, count, name, message):
    gpus(count)
    with pytest.raises(BackendError, match=f"^--device {name}: {message}"):
        resolve_device(name)


@pytest.mark.parametrize(
    "name, device, capability, dtype",
    [
        ("auto", CPU, (9, 0), torch.float32),
        ("auto", CUDA, (8, 0), torch.bfloat16),
        ("auto", CUDA, (7, 5), torch.float32),
        ("fp32", CUDA, (7, 5), torch.float32),
        ("bf16", CPU, (7, 5), torch.bfloat16),
        ("bf16", CUDA, (8, 6), torch.bfloat16),
        ("fp16", CUDA, (7, 5), torch.float16),
    ],
)
def test_a_precision_that_the_device_has_is_used(gpus, name, device, capability, dtype):
    gpus(1, capability)
    assert resolve_precision(name, device) is dtype


@pytest.mark.parametrize(
    "features, dtype",
    [
        ({"avx512_f": True, "avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": True}, torch.bfloat16),
        ({"avx512_f": True, "avx512_bf16": False}, torch.float32),
        ({}, torch.float32),
    ],
)
def test_auto_trains_in_bf16_on_a_cpu_only_if_it_has_the_instructions(monkeypatch, features, dtype):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    assert resolve_precision("auto", CPU, training=True) is dtype
    assert resolve_precision("auto", CPU) is torch.float32


@pytest.mark.parametrize(
    "name, device, message",
    [
        ("fp16", CPU, "needs a CUDA GPU; use bf16 or fp32 on a CPU"),
        ("bf16", CUDA, "Tesla T4 has no bf16 arithmetic; use fp16 or fp32"),
        ("fp8", CPU, "unknown; valid: auto, fp32, bf16, fp16"),
    ],
)
def test_any_other_precision_is_refused(gpus, name, device, message):
    gpus(1, (7, 5))
    with pytest.raises(BackendError, match=f"^--precision {name}: {message}"):
        resolve_precision(name, device)
