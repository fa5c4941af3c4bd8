"""`tfm bench translate`: how many sentences search translates a second, and how long one takes.

Random weights do not end a sentence where trained ones would, and two programs end theirs at
different places. So the number of pieces to write can be set: EOS is ruled out, all hypotheses grow
to the same length, and everyone does the same work.
"""

import copy
import random
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from tfm.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer
from tfm.model.attention.choice import resolve
from tfm.model.benchmarks.products import wait_for
from tfm.model.checkpoint import build_model, load_model
from tfm.model.device import resolve_precision
from tfm.model.search.beam import Hypothesis, beam_search
from tfm.model.search.prepared import Prepared
from tfm.model.settings import Settings
from tfm.model.transformer import Transformer

WORD = re.compile(r"\w+|[^\w\s]")
WARM_UP = 32  # sentences before the clock runs


@dataclass(frozen=True)
class Speed:
    """What one search took: all sources in batches, and some of them one at a time.

    `pieces` are those of the best translations, end of sentence included where there is one.
    """

    precision: str
    beam: int
    sentences: int
    pieces: int
    seconds: float
    ms_one_at_a_time: float

    @property
    def sentences_per_s(self) -> float:
        """Sentences per second in batches."""
        return self.sentences / self.seconds

    def to_json(self) -> dict[str, Any]:
        """Return the figures by names that scripts may rely on."""
        return asdict(self) | {
            "sentences_per_s": round(self.sentences_per_s, 2),
            "pieces_per_s": round(self.pieces / self.seconds, 1),
            "seconds": round(self.seconds, 4),
            "ms_one_at_a_time": round(self.ms_one_at_a_time, 3),
        }


@dataclass(frozen=True)
class Work:
    """A network in eval mode, and what it is to translate.

    Attributes:
        sources: ids, EOS included.
        settings: those of the search count.
        forbidden: target ids that no translation may have.
    """

    model: Transformer
    sources: Sequence[Sequence[int]]
    settings: Settings
    forbidden: frozenset[int]

    @classmethod
    def random(
        cls,
        settings: Settings,
        tokenizer: Path | None,
        lines: Sequence[str],
        *,
        device: torch.device,
    ) -> Self:
        """Draw the weights, the same ones for the same settings.

        Without a tokenizer the vocabularies have as many ids as `tokenizer.vocab_size` says, and
        each word and mark of a line gets one of them at random.
        """
        torch.manual_seed(settings.training.seed)
        if tokenizer is not None:
            pieces = Tokenizer.load(tokenizer)
            model = build_model(settings, pieces).to(device).eval()
            return cls(model, _encode(pieces, lines, settings), settings, pieces.forbidden_ids)
        V, joint = settings.tokenizer.vocab_size, not settings.tokenizer.separate
        model = Transformer(settings.model, source_vocab=V, target_vocab=V, joint=joint)
        draw = random.Random(settings.training.seed)
        vocabulary = range(max(PAD, UNK, BOS, EOS) + 1, V)
        sources = [[*draw.choices(vocabulary, k=len(WORD.findall(line))), EOS] for line in lines]
        return cls(model.to(device).eval(), sources, settings, frozenset({PAD, UNK, BOS}))

    @classmethod
    def load(
        cls, path: Path, settings: Settings, lines: Sequence[str], *, device: torch.device
    ) -> Self:
        """Load a model directory, which translates as `settings` say.

        Raises:
            CheckpointError: if it is none, or damaged.
        """
        model, tokenizer, own = load_model(path, device=device)
        return cls(model, _encode(tokenizer, lines, own), settings, tokenizer.forbidden_ids)

    def forced(self, length: int) -> Self:
        """Return the same work with translations of `length` pieces, none of which is EOS."""
        decoding = replace(
            self.settings.decoding, max_length=length, max_length_ratio=float(length)
        )
        settings = replace(self.settings, decoding=decoding)
        return replace(self, settings=settings, forbidden=self.forbidden | {EOS})

    def prepare(self, precision: str, attention: str) -> Prepared:
        """Make the network ready for search, in a precision and with attention by name.

        Args:
            precision: int8 is products in 8 bits, and the rest in fp32.

        Raises:
            BackendError: if one of them cannot run here.
        """
        device = self.model.target_embedding.weight.device
        quantize = precision == "int8"
        dtype = torch.float32 if quantize else resolve_precision(precision, device)
        model = copy.deepcopy(self.model).to(dtype)
        settings = model.settings
        plan = resolve(
            attention,
            device=device,
            dtype=dtype,
            dropout=0.0,
            training=False,
            head_width=settings.d_model // settings.heads,
            encoder_forms=settings.encoder_forms,
            window=settings.window,
        )
        model.use_attention(plan)
        return Prepared(model, quantize=quantize)

    def measure(self, model: Prepared, precision: str, beam: int, *, single: int) -> Speed:
        """Translate all sources, sorted into batches, and then the first `single` one by one."""
        decoding = replace(self.settings.decoding, beam=beam)

        def search(sources: Sequence[Sequence[int]]) -> list[list[Hypothesis]]:
            found = beam_search(model, sources, decoding, forbidden=self.forbidden)
            wait_for(model.device)
            return found

        search(self.sources[:WARM_UP])
        begin = time.perf_counter()
        found = search(self.sources)
        seconds = time.perf_counter() - begin
        alone = self.sources[:single]
        search(alone[:1])
        begin = time.perf_counter()
        for source in alone:
            search([source])
        milliseconds = 1e3 * (time.perf_counter() - begin) / len(alone)
        pieces = sum(len(best.token_log_probabilities) for best, *_ in found)
        return Speed(precision, beam, len(found), pieces, seconds, milliseconds)


def _encode(tokenizer: Tokenizer, lines: Sequence[str], settings: Settings) -> list[list[int]]:
    """Return the ids of lines, EOS included, cut where they are longer than the model may read."""
    encoded = tokenizer.encode_source_batch(lines)
    return [[*ids[: settings.data.max_length], EOS] for ids in encoded]
