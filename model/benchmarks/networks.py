"""Training steps and search of whole networks, of a preset's size, on random ids.

Nothing is learned and nothing is read: what counts is what a step or a sentence takes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
import torch

from tfm.data.batching import Batch, EncodedCorpus, Side, make_batch
from tfm.data.pieces import BOS, EOS
from tfm.model.attention.choice import BACKENDS, AttentionPlan, resolve
from tfm.model.benchmarks.clock import peak_bytes_of, seconds_of
from tfm.model.benchmarks.entries import Cell, Deadline, Entry, attempt
from tfm.model.benchmarks.products import measure_peak, training_flops
from tfm.model.benchmarks.translate import Work
from tfm.model.device import PRECISIONS
from tfm.model.settings import ModelSettings, Settings
from tfm.model.training.step import Learner, train_step
from tfm.model.transformer import Transformer

WARM_UP = 3  # steps
RATE = 1e-5  # the learning rate: on random ids nothing is to be learned
BEAMS = (1, 4)
ALONE = 8  # sentences that are also translated one at a time


class Load(NamedTuple):
    """What the networks are given: so many pieces of vocabulary, sentences and their lengths."""

    vocabulary: int
    lengths: Sequence[int]  # of both sides in training, EOS included
    sentences: int  # to translate, each of the first of these lengths, into as many pieces


def training_entries(
    names: Sequence[str],
    load: Load,
    device: torch.device,
    dtypes: Sequence[str],
    deadline: Deadline,
    overrides: Sequence[str] = (),
) -> Iterator[Entry]:
    """Yield a row for the training of each preset, dtype, length, padding and backend."""
    peaks = {dtype: measure_peak(device, PRECISIONS[dtype]) for dtype in dtypes}
    for name, dtype in product(names, dtypes):
        settings = Settings.read(name, overrides)
        learner = new_learner(settings, load.vocabulary, device, PRECISIONS[dtype])
        for length, padded, backend in product(load.lengths, (False, True), BACKENDS):
            batch = random_batch(
                load.vocabulary, settings.training.batch_tokens, length, padded=padded
            )
            labels: Mapping[str, Cell] = {
                "preset": name, "dtype": dtype, "length": length, "padded": padded,
                "backend": backend,
            }  # fmt: skip
            measured = partial(measure_step, learner, settings, batch, backend, peaks[dtype])
            yield attempt(labels, measured, deadline)


def new_learner(
    settings: Settings, vocabulary: int, device: torch.device, dtype: torch.dtype
) -> Learner:
    """Return a network with random weights, and its optimizer, ready for steps."""
    model = new_network(settings.model, vocabulary).to(device).train()
    return Learner.create(model, settings.training, device=device, dtype=dtype)


def new_network(model: ModelSettings, vocabulary: int) -> Transformer:
    """Return a network with random weights, the same ones each time."""
    torch.manual_seed(1)
    return Transformer(model, source_vocab=vocabulary, target_vocab=vocabulary, joint=True)


def random_batch(vocabulary: int, batch_tokens: int, length: int, *, padded: bool) -> Batch:
    """Return as many pairs of random ids as the budget of tokens holds.

    The pairs are all as long as `length`, EOS included; or padded to that, from a quarter of it on.
    """
    rng = np.random.default_rng(1)
    rows = max(2, batch_tokens // length)
    shortest = max(2, length // 4) if padded else length
    lengths = np.linspace(shortest, length, rows).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths - 1)])
    source, target = (
        Side(rng.integers(EOS + 1, vocabulary, offsets[-1], dtype=np.int32), offsets)
        for _ in range(2)
    )
    return make_batch(EncodedCorpus(source, target), np.arange(rows))


def plan_for(
    backend: str, model: ModelSettings, device: torch.device, dtype: torch.dtype, *, training: bool
) -> AttentionPlan:
    """Resolve a backend for a network of these settings.

    Raises:
        BackendError: if it cannot run here.
    """
    return resolve(
        backend,
        device=device,
        dtype=dtype,
        dropout=model.attention_dropout,
        training=training,
        head_width=model.d_model // model.heads,
        encoder_forms=model.encoder_forms,
        window=model.window,
    )


def measure_step(
    learner: Learner, settings: Settings, batch: Batch, backend: str, peak: float
) -> Mapping[str, Cell]:
    """Return what a whole step on `batch` takes: forward, backward, clipping, optimizer.

    Tokens are those of both sides without padding; so are the products that the share of the
    machine's peak counts.

    Raises:
        BackendError: if the backend cannot run here.
    """
    device, model = learner.device, learner.model
    learner.too_large = None  # another backend may need less memory
    model.use_attention(plan_for(backend, settings.model, device, learner.dtype, training=True))
    step = partial(train_step, learner, [batch], settings.training, step=1, learning_rate=RATE)
    for _ in range(WARM_UP):
        step()
    peak_bytes = peak_bytes_of(step, device)
    seconds = seconds_of(step, device)
    flops = training_flops(settings.model, model.target_vocab, batch)
    return {
        "tokens_per_s": batch.tokens / seconds,
        "ms": 1e3 * seconds,
        "tflops_per_s": flops / seconds / 1e12,
        "share_of_peak": flops / seconds / peak,
        "peak_mib": peak_bytes / 2**20,
        "split": learner.too_large is not None,  # memory was too small for the whole batch
    }


def search_entries(
    names: Sequence[str],
    load: Load,
    device: torch.device,
    dtypes: Sequence[str],
    deadline: Deadline,
    overrides: Sequence[str] = (),
) -> Iterator[Entry]:
    """Yield a row for the search with each preset, dtype and beam."""
    for name in names:
        work = search_work(Settings.read(name, overrides), load, device)
        for dtype, beam in product(dtypes, BEAMS):
            labels: Mapping[str, Cell] = {"preset": name, "dtype": dtype, "beam": beam}
            yield attempt(labels, partial(measure_search, work, dtype, beam), deadline)


def search_work(settings: Settings, load: Load, device: torch.device) -> Work:
    """Return sentences of random ids to translate into as many pieces as they have, all at once."""
    length = load.lengths[0]
    rng = np.random.default_rng(1)
    ids = rng.integers(EOS + 1, load.vocabulary, (load.sentences, length - 1))
    tokens = load.sentences * length * max(BEAMS)
    settings = replace(settings, decoding=replace(settings.decoding, batch_tokens=tokens))
    model = new_network(settings.model, load.vocabulary).to(device).eval()
    work = Work(model, [[*row, EOS] for row in ids.tolist()], settings, frozenset({BOS}))
    return work.forced(length - 1)


def measure_search(work: Work, dtype: str, beam: int) -> Mapping[str, Cell]:
    """Return how many sentences a second are translated, and what one takes by itself.

    Raises:
        BackendError: if the precision cannot be had here.
    """
    speed = work.measure(work.prepare(dtype, "auto"), dtype, beam, single=ALONE)
    return {
        "sentences_per_s": speed.sentences_per_s,
        "pieces_per_s": speed.pieces / speed.seconds,
        "ms_one_at_a_time": speed.ms_one_at_a_time,
    }
