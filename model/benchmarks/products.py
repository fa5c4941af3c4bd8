"""How much arithmetic a training step needs, and how much the machine can do.

Only matrix products count: they are nearly all of the arithmetic. Padding counts nothing, so that
a share of the peak says how much of the machine does work that somebody wants.
"""

import time

import numpy as np
import numpy.typing as npt
import torch

from tfm.data.batching import Batch
from tfm.model.attention.forms import AttentionForm
from tfm.model.layers import gated_width
from tfm.model.linear import multiply
from tfm.model.settings import ModelSettings

IntArray = npt.NDArray[np.int64]
BACKWARD = 2  # products of the backward pass for each of the forward pass: one per operand
PEAK_SECONDS = 1.0  # a processor needs a while to show what it can do
PEAK_SIZES = {"cpu": 1024, "cuda": 8192}  # matrices that fill the device, and no more than that


def training_flops(model: ModelSettings, target_vocab: int, batch: Batch) -> int:
    """Return the floating-point operations of the matrix products that `batch` needs in training.

    Attention counts all T x S scores of a pair, also those that causality hides.
    """
    D = model.d_model
    S, T = batch.source_lengths, batch.target_lengths
    source, target = int(S.sum()), int(T.sum())
    feed_forward = 2 * D * model.d_ff
    if model.activation == "swiglu":
        feed_forward = 3 * D * gated_width(model.d_ff)
    encoder = source * (4 * D * D + feed_forward)
    decoder = target * (6 * D * D + feed_forward) + source * 2 * D * D
    decoder += 2 * D * int((T * T + T * S).sum())
    forward = model.encoder_layers * encoder + model.decoder_layers * decoder
    forward += sum(2 * D * int((S * seen(form, S, model)).sum()) for form in model.encoder_forms)
    forward += target * D * target_vocab
    return 2 * (1 + BACKWARD) * forward  # a multiplication and an addition each


def seen(form: AttentionForm, N: IntArray, model: ModelSettings) -> IntArray:
    """Return with how many others each of N positions is multiplied in one form of attention."""
    if form == "linear":  # phi(K)^T V and phi(Q) times that, for each head
        return np.full_like(N, model.d_model // model.heads)
    return np.minimum(N, model.window + 1) if form == "local" else N


def measure_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Return the FLOP per second of the fastest of many large products in `dtype`.

    They are made by the library that the network's are made by, or a share could exceed the whole.
    """
    n = PEAK_SIZES.get(device.type, 1024)
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    fastest = float("inf")
    end = time.perf_counter() + PEAK_SECONDS
    while time.perf_counter() < end:
        begin = time.perf_counter()
        multiply(a, b)
        wait_for(device)
        fastest = min(fastest, time.perf_counter() - begin)
    return 2 * n**3 / fastest


def wait_for(device: torch.device) -> None:
    """Return when the device has done all that it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
