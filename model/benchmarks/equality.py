"""Whether every backend computes the formula here: its error against fp64, beside that of `math`.

A backend may be off by `FACTOR` times what the formula is off by in the same dtype on the same
device: rounding, and nothing beyond it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from tfm.model.attention.choice import BACKENDS, resolve
from tfm.model.attention.forms import AttentionForm, by_definition
from tfm.model.attention.multihead import Attend
from tfm.model.attention.padding import Padding
from tfm.model.benchmarks.clock import quiet_profiler
from tfm.model.benchmarks.entries import Cell, Deadline, Entry, attempt
from tfm.model.device import PRECISIONS

ROWS, HEADS, WIDTH, WINDOW = 4, 4, 64, 16
FACTOR = 3
# About the last place of numbers near 1: no smaller error counts.
SMALLEST = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 1e-3}
OPERATORS = ("_scaled_dot_product", "varlen", "_flash_attention_forward", "_efficient_attention")


class Place(NamedTuple):
    """Where in the network attention stands, and in which form."""

    name: str
    form: AttentionForm = "full"
    causal: bool = False
    cross: bool = False


PLACES = (
    Place("encoder"),
    Place("decoder", causal=True),
    Place("cross", cross=True),
    Place("local encoder", form="local"),
    Place("linear encoder", form="linear"),
)
# What computes each form; `auto` has kernels of its own for those other than full.
NAMES: dict[AttentionForm, Sequence[str]] = {
    "full": tuple(BACKENDS),
    "local": ("auto", *BACKENDS),
    "linear": ("auto", "math"),
}


class Case(NamedTuple):
    """One comparison: queries, keys, values and the output's gradient in fp64, and the padding."""

    place: Place
    inputs: Sequence[Tensor]
    queries: Padding
    keys: Padding

    @classmethod
    def draw(
        cls, place: Place, length: int, *, padded: bool, dtype: torch.dtype, device: torch.device
    ) -> "Case":
        """Draw numbers that `dtype` holds exactly. The gradient is 0 at padded queries."""
        generator = torch.Generator().manual_seed(length)
        keys = length * 3 // 4 if place.cross else length
        queries_padding, keys_padding = (
            _padding(n, padded=padded, device=device) for n in (length, keys)
        )
        q, k, v, upstream = (
            torch.randn(ROWS, HEADS, n, WIDTH, generator=generator).to(dtype).to(device).double()
            for n in (length, keys, keys, length)
        )
        real = _real(queries_padding)
        return cls(place, (q, k, v, upstream * real), queries_padding, keys_padding)

    def run(self, attend: Attend, dtype: torch.dtype) -> list[Tensor]:
        """Return the output at real queries and the gradients of q, k, v, in fp64."""
        *qkv, upstream = self.inputs
        q, k, v = (x.detach().to(dtype, copy=True).requires_grad_() for x in qkv)
        out = self.call(attend, q, k, v)
        gradients = torch.autograd.grad(out, (q, k, v), upstream.to(dtype))
        return [out.detach().double() * _real(self.queries), *(x.double() for x in gradients)]

    def call(self, attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend as the network does there: causality hides the padding of the decoder's keys."""
        causal = self.place.causal
        keys = None if causal else self.queries if not self.place.cross else self.keys
        return attend(q, k, v, causal=causal, queries=self.queries, keys=keys, dropout=0.0)


def _padding(length: int, *, padded: bool, device: torch.device) -> Padding:
    lengths = [length, length // 3, 1, length - 1] if padded else [length] * ROWS
    return Padding.from_lengths(lengths, longest=length, device=device)


def _real(padding: Padding) -> Tensor:
    steps = torch.arange(padding.longest, device=padding.lengths.device)
    return (steps < padding.lengths[:, None])[:, None, :, None]


def compare_backends(
    device: torch.device, dtypes: Sequence[str], length: int, deadline: Deadline
) -> Iterator[Entry]:
    """Yield a row for each place, dtype, backend, and batches with and without padding."""
    for place, dtype, padded in product(PLACES, dtypes, (False, True)):
        case = Case.draw(place, length, padded=padded, dtype=PRECISIONS[dtype], device=device)
        for backend in NAMES[place.form]:
            labels: Mapping[str, Cell] = {
                "attention": place.name,
                "backend": backend,
                "dtype": dtype,
                "padded": padded,
            }
            entry = attempt(labels, partial(compare, case, backend, dtype), deadline)
            wrong = entry.figures.get("within") is False
            yield Entry(labels, entry.figures, entry.not_run, broken=entry.broken or wrong)


def compare(case: Case, backend: str, precision: str) -> Mapping[str, Cell]:
    """Return the largest error of the output and of the gradients, and whether they are allowed.

    Raises:
        BackendError: if the backend cannot run here.
    """
    dtype, place = PRECISIONS[precision], case.place
    attend = kernel(case, backend, dtype)
    definition = by_definition(place.form, window=WINDOW)
    exact = case.run(definition, torch.float64)
    limits = errors(case.run(definition, dtype), exact)
    found = errors(case.run(attend, dtype), exact)
    within = all(
        math.isfinite(error) and error <= FACTOR * max(limit, SMALLEST[dtype])
        for error, limit in zip(found, limits, strict=True)
    )
    return {
        "error": found[0],
        "gradient_error": max(found[1:]),
        "error_of_math": limits[0],
        "gradient_error_of_math": max(limits[1:]),
        "within": within,
        "operators": operators(case, attend, dtype),
    }


def kernel(case: Case, backend: str, dtype: torch.dtype) -> Attend:
    """Return what computes `case` under the backend's name.

    Raises:
        BackendError: if nothing can here.
    """
    place = case.place
    plan = resolve(
        backend,
        device=case.inputs[0].device,
        dtype=dtype,
        dropout=0.0,
        training=True,
        head_width=WIDTH,
        encoder_forms=(place.form,),
        window=WINDOW,
    )
    if place.cross:
        return plan.cross
    return plan.decoder if place.causal else plan.of_encoder(place.form)


def errors(found: Sequence[Tensor], exact: Sequence[Tensor]) -> list[float]:
    """Return the largest error of each tensor; a number that is none is one without end."""
    differences = (
        (a - b).abs().nan_to_num(nan=torch.inf) for a, b in zip(found, exact, strict=True)
    )
    return [float(difference.max()) for difference in differences]


def operators(case: Case, attend: Attend, dtype: torch.dtype) -> str:
    """Return the names of the attention operators that a forward pass runs; none for products."""
    quiet_profiler()
    q, k, v = (x.to(dtype) for x in case.inputs[:3])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        case.call(attend, q, k, v)
    names = {event.key for event in profile.key_averages()}
    return " ".join(sorted(n for n in names if any(operator in n for operator in OPERATORS)))
