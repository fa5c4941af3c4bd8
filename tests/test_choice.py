"""The choice of backends: a name is honoured or refused, and what runs is said in plain words."""

import pytest
import torch

from tfm.data.errors import BackendError
from tfm.model.attention import flash, formula, sdpa
from tfm.model.attention.choice import BACKENDS, math_while_small, resolve

CPU = torch.device("cpu")


def plan(name, *, device=CPU, dtype=torch.float32, dropout=0.0, training=True, head_width=64):
    return resolve(
        name, device=device, dtype=dtype, dropout=dropout, training=training, head_width=head_width
    )


@pytest.fixture
def a_gpu(monkeypatch):
    """Return a function that makes torch believe in a GPU of the given capability."""

    def pretend(capability):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Tesla T4")
        monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
        return torch.device("cuda")

    return pretend


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_asked_for_by_name_is_the_one_that_runs(name):
    chosen = plan(name)
    assert chosen.encoder is chosen.decoder is chosen.cross is BACKENDS[name]


def test_the_plan_says_once_which_kernel_each_kind_of_attention_uses(a_gpu):
    [line] = plan("auto", training=False).describe()
    who = "encoder, decoder and cross attention"
    assert line.startswith(f"{who}: CPU flash kernel (SDPA): no T x S matrix")
    lines = plan("auto", device=a_gpu((9, 0)), dtype=torch.bfloat16).describe()
    assert [line.split(" attention: ")[0] for line in lines] == ["encoder and cross", "decoder"]


@pytest.mark.parametrize("name", ["auto", *BACKENDS])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_reason_is_a_kernel_a_colon_and_why(a_gpu, name, dropout, dtype, device):
    where = a_gpu((9, 0)) if device == "cuda" else CPU
    if name == "flash" and (dropout or (device == "cuda" and dtype is torch.float32)):
        pytest.skip("refused")
    for reason in plan(name, device=where, dtype=dtype, dropout=dropout).reasons:
        kernel, why = reason.split(": ")
        assert kernel and why and "\n" not in reason


def test_auto_uses_math_on_a_cpu_where_dropout_rules_out_fused_kernels():
    chosen = plan("auto", dropout=0.1)
    assert chosen.encoder is formula.attend
    assert "attention dropout 0.1 rules out the CPU flash kernel" in chosen.describe()[0]
    assert plan("auto", dropout=0.1, training=False).encoder is sdpa.attend


@pytest.mark.parametrize("training", [True, False])
def test_auto_takes_math_for_half_precision_on_a_cpu_until_memory_is_at_stake(
    monkeypatch, training
):
    assert plan("auto", training=training).encoder is sdpa.attend
    chosen = plan("auto", dtype=torch.bfloat16, training=training)
    assert chosen.encoder is math_while_small
    assert "beyond 17 million scores a batch" in chosen.describe()[0]
    used = []
    monkeypatch.setattr(formula, "attend", lambda *_, **__: used.append("math"))
    monkeypatch.setattr(sdpa, "attend", lambda *_, **__: used.append("sdpa"))
    for length in (4096, 4097):
        q = torch.empty(1, 1, length, 0)
        math_while_small(q, q, q, causal=False, queries=None, keys=None, dropout=0.0)
    assert used == ["math", "sdpa"]


def test_no_plan_leaves_cudnn_attention_on():
    torch.backends.cuda.enable_cudnn_sdp(True)
    plan("math")
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_an_unknown_backend_is_refused_with_the_valid_names():
    with pytest.raises(BackendError, match="fast: unknown; valid: auto, math, sdpa, flash"):
        plan("fast")


def test_flash_refuses_attention_dropout_in_training_only():
    with pytest.raises(BackendError, match=r"attention dropout 0\.1: .*attention_dropout=0"):
        plan("flash", dropout=0.1)
    assert plan("flash", dropout=0.1, training=False).encoder is flash.attend


@pytest.mark.parametrize(
    "capability, options, reason",
    [
        ((8, 0), {"dtype": torch.float32}, "float32: flash needs fp16 or bf16; add --precision"),
        ((7, 5), {}, "Tesla T4 has compute capability 7.5: flash needs 8.0; use --attention sdpa"),
        ((9, 0), {"head_width": 512}, "head width 512: flash takes 256 at most; raise model.heads"),
        ((9, 0), {"dropout": 0.1}, "attention dropout 0.1"),
    ],
)
def test_flash_refuses_what_no_cuda_kernel_can_do(a_gpu, capability, options, reason):
    device = a_gpu(capability)
    with pytest.raises(BackendError, match=f"--attention flash cannot run here: {reason}") as error:
        plan("flash", device=device, **({"dtype": torch.bfloat16} | options))
    assert "\n" not in str(error.value)


def test_all_reasons_to_refuse_are_given_at_once(a_gpu):
    with pytest.raises(BackendError, match="dropout 0.1.*float32.*capability 7.5.*width 300"):
        plan("flash", device=a_gpu((7, 5)), dropout=0.1, head_width=300)


def test_what_sdpa_says_on_cuda_is_honest_about_masks(a_gpu):
    encoder, decoder, cross = plan("auto", device=a_gpu((9, 0)), dtype=torch.bfloat16).reasons
    assert "memory-efficient kernel (SDPA) for padded batches: flash takes no mask" in encoder
    assert encoder == cross
    assert decoder == "flash kernel (SDPA): causality hides the padding"
    encoder, decoder, cross = plan("auto", device=a_gpu((9, 0)), dtype=torch.float32).reasons
    assert encoder == decoder == cross and encoder.startswith("memory-efficient kernel (SDPA)")


def test_flash_says_that_it_removes_padding_on_cuda(a_gpu):
    chosen = plan("flash", device=a_gpu((9, 0)), dtype=torch.bfloat16)
    assert "varlen flash for padded batches" in chosen.describe()[0]
