"""Text in, text out: a model directory as a translator.

Any text is one line to it, and gives one line: blank text gives an empty translation without a
call of the model, and text longer than the model was trained on is cut, translated in parts and
joined again.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Self

import torch

from tfm.data.segments import Segment, join_segments, split_line
from tfm.data.tokenizer import EOS
from tfm.model.attention.choice import AttentionPlan, resolve
from tfm.model.beams import Beams
from tfm.model.checkpoint import LoadedModel, load_model
from tfm.model.device import PRECISIONS, resolve_device, resolve_precision
from tfm.model.ensemble import Ensemble, require_same_vocabulary
from tfm.model.mbr import Choice, rerank
from tfm.model.prepared import prepare
from tfm.model.request import Request
from tfm.model.search import beam_search
from tfm.model.settings import DecodingSettings
from tfm.model.watched import Watched


class Part(NamedTuple):
    """What was translated at a time: a text, or a part of a long one."""

    text: str
    source: list[int]  # its ids, without EOS
    target: list[int]  # those of its translation, without EOS


@dataclass(frozen=True)
class Candidate:
    """One translation of a text.

    Attributes:
        text: without LF and CR.
        log_probability: log P(text | source), natural logarithm.
        score: `log_probability` / n ** length_penalty for n pieces, end of sentence included.
        tokens: the pieces as the model chose them; U+2581 stands for a space.
        ids: of the same pieces in the target vocabulary.
        truncated: it was cut at the maximum length.
        parts: one, more where the text was too long for the model, none where it was blank.
        utility: its expected chrF where `decoding.mbr` asks for that (of a text in parts, their
            mean); else None.
    """

    text: str
    log_probability: float
    score: float
    tokens: list[str]
    ids: list[int]
    truncated: bool
    parts: list[Part]
    utility: float | None = None


class Unit(NamedTuple):
    """What is to be translated at a time: a text, or a part of a long one."""

    ids: list[int]  # of the source, without EOS
    request: Request
    spaced: bool = False  # whether a space stood between it and the part before


@dataclass(frozen=True, kw_only=True)
class Translation(Candidate):
    """The best translation of `source`, and the `n_best` best, itself being the first of them."""

    source: str
    n_best: list[Candidate]


class Member(NamedTuple):
    """One network of an ensemble beside the first, and the attention backends it runs with."""

    loaded: LoadedModel
    plan: AttentionPlan


class Translator:
    """A model that translates text, or an ensemble of models with the same vocabulary.

        translator = Translator.load("runs/m30k")
        translator.translate(["A dog runs."])  # ["Ein Hund läuft."]

    Args:
        loaded: a model directory in memory, the network where and in which precision it is to run.
        plan: the attention backends it runs with.
        others: what else is asked about each next piece; see `tfm.model.ensemble`. All settings
            are those of the first model.

    Attributes:
        models: all networks, `model` first.
        limit: most pieces of a text that all of them were trained on.
        decoding: how it searches where a call does not say otherwise; yours to replace.
        warn: is called with what the user should know, once; `warnings.warn` unless replaced.
    """

    def __init__(
        self, loaded: LoadedModel, plan: AttentionPlan, *, others: Sequence[Member] = ()
    ) -> None:
        self.model, self.tokenizer, self.settings = loaded
        self.plan = plan
        members = [Member(loaded, plan), *others]
        self.models = [member.loaded.model for member in members]
        self.limit = min(member.loaded.settings.data.max_length for member in members)
        self.decoding = self.settings.decoding
        self.warn: Callable[[str], None] = warnings.warn
        self._warned = False
        self._forbidden = self.tokenizer.forbidden_ids
        for member in members:
            member.loaded.model.use_attention(member.plan)
        self._plans = [member.plan for member in members]
        self._prepared = Ensemble([prepare(model) for model in self.models])

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        ensemble: Sequence[Path | str] = (),
        device: str = "auto",
        precision: str = "auto",
        attention: str = "auto",
    ) -> Self:
        """Load a model directory, as `tfm train` leaves it.

        Args:
            ensemble: other model directories, asked together with the first.
            device: auto, cpu, cuda or cuda:N.
            precision: auto, fp32, bf16 or fp16: of the weights and of all but sums and softmax.
            attention: auto, or a backend by name; see `tfm.model.attention.choice`.

        Raises:
            CheckpointError: for a directory that is no model's, or is damaged, or has another
                vocabulary or direction than the first.
            BackendError: for a device, precision or backend that cannot run here.
        """
        where = resolve_device(device)
        dtype = resolve_precision(precision, where)
        first = _load_member(path, where, dtype, attention)
        others = []
        for other_path in ensemble:
            other = _load_member(other_path, where, dtype, attention)
            require_same_vocabulary(Path(path), first.loaded, Path(other_path), other.loaded)
            others.append(other)
        return cls(*first, others=others)

    def translate(
        self,
        texts: Sequence[str | Request],
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
        max_length: int | None = None,
        mbr: str | None = None,
    ) -> list[str]:
        """Return the translation of each text; see `translate_all` for the options."""
        translations = self.translate_all(
            texts, beam=beam, length_penalty=length_penalty, max_length=max_length, mbr=mbr
        )
        return [translation.text for translation in translations]

    def translate_all(
        self,
        texts: Sequence[str | Request],
        *,
        n_best: int = 1,
        beam: int | None = None,
        length_penalty: float | None = None,
        max_length: int | None = None,
        mbr: str | None = None,
    ) -> list[Translation]:
        """Return the translation of each text with its score, pieces and alternatives.

        Args:
            texts: any text; a line break in it does not come out again. A `Request` also says what
                is to hold for its text alone.
            n_best: how many alternatives, at most `beam`; with `mbr` only those of distinct text.
            beam, length_penalty, max_length, mbr: in place of those of `self.decoding`.

        Raises:
            TypeError: for one string, whose characters would be taken for texts.
            SettingsError: for an option out of range.
            CheckpointError: if the model computes something that is not a number.
        """
        if isinstance(texts, str):
            raise TypeError("`texts` must be a list of strings, not one: translate([text])")
        options: dict[str, Any] = {
            "beam": beam,
            "length_penalty": length_penalty,
            "max_length": max_length,
            "mbr": mbr,
        }
        decoding = replace(
            self.decoding, **{key: value for key, value in options.items() if value is not None}
        )
        requests = [Request(text) if isinstance(text, str) else text for text in texts]
        lines = self._segment(requests)
        units = [unit for line in lines for unit in line]
        found = iter(self._search(self._prepared, units, decoding, n_best))
        return [
            self._assemble(request.text, line, [next(found) for _ in line], decoding)
            for request, line in zip(requests, lines, strict=True)
        ]

    def stream(
        self,
        batches: Iterable[Sequence[str | Request]],
        *,
        n_best: int = 1,
        beam: int | None = None,
        length_penalty: float | None = None,
        max_length: int | None = None,
    ) -> Iterator[list[Translation]]:
        """Yield the translations of each batch of texts before the next one is asked for.

        Memory does not grow with the number of batches. Within a batch, texts of like length are
        translated together, so that batches of a thousand are quicker than batches of ten.
        """
        for texts in batches:
            yield self.translate_all(
                texts,
                n_best=n_best,
                beam=beam,
                length_penalty=length_penalty,
                max_length=max_length,
            )

    def translate_growing(self, text: str | Request, show: Callable[[str], None]) -> Translation:
        """Return the translation of one text, as `translate_all` does.

        `show` sees it grow: before each step of search the best hypothesis so far, which the next
        one may replace by another. Of a long text one part grows after the other.
        """
        request = Request(text) if isinstance(text, str) else text
        (units,) = self._segment([request])
        done: list[str] = []
        found: list[list[Choice]] = []

        def watch(beams: Beams) -> None:
            growing = self.tokenizer.decode_target(beams.tokens[0, 0, 1:].tolist())
            show(_joined(units[: len(done) + 1], [*done, growing]))

        for unit in units:
            found += self._search(Watched(self._prepared, watch), [unit], self.decoding, 1)
            done.append(self.tokenizer.decode_target(found[-1][0].hypothesis.tokens))
        return self._assemble(request.text, units, found, self.decoding)

    def describe(self) -> list[str]:
        """Return lines that say where, in which precision and by which attention it runs."""
        weight = self.model.target_embedding.weight
        precision = next(name for name, dtype in PRECISIONS.items() if dtype == weight.dtype)
        steps = "search steps: the formula in batched products, or SDPA; keys are cached"
        plans = dict.fromkeys(line for plan in self._plans for line in plan.describe())
        lines = [f"device: {weight.device}, {precision}", *plans, steps]
        if len(self.models) > 1:
            lines.append(f"ensemble: {len(self.models)} networks, the mean of their probabilities")
        return lines

    def _search(
        self, model: Ensemble, units: Sequence[Unit], decoding: DecodingSettings, n_best: int
    ) -> list[list[Choice]]:
        """Return the best hypotheses of each unit: the one place that searches."""
        found = beam_search(
            model,
            [[*unit.ids, EOS] for unit in units],
            decoding,
            forbidden=self._forbidden,
            n_best=n_best if decoding.mbr == "none" else max(n_best, decoding.beam),
        )
        if decoding.mbr == "none":
            return [[Choice(hypothesis) for hypothesis in hypotheses] for hypotheses in found]
        decode = self.tokenizer.decode_target
        return [rerank(each, [decode(h.tokens) for h in each])[:n_best] for each in found]

    def _segment(self, requests: Sequence[Request]) -> list[list[Unit]]:
        """Return what is to be translated of each text: nothing of a blank one, mostly itself."""
        lines: list[list[Unit]] = []
        encoded = self.tokenizer.encode_source_batch([request.text for request in requests])
        for request, ids in zip(requests, encoded, strict=True):
            if not request.text.strip():
                lines.append([])
            elif len(ids) <= self.limit:
                lines.append([Unit(ids, request)])
            else:
                self._warn_of_length(len(ids), self.limit)
                lines.append(self._split(request))
        return lines

    def _split(self, request: Request) -> list[Unit]:
        """Return the parts of a text that is too long."""
        parts = split_line(
            request.text, lambda text: len(self.tokenizer.encode_source(text)) <= self.limit
        )
        sources = self.tokenizer.encode_source_batch([part.text for part in parts])
        return [
            Unit(ids, request.part(part.text), part.spaced)
            for ids, part in zip(sources, parts, strict=True)
        ]

    def _warn_of_length(self, length: int, limit: int) -> None:
        if not self._warned:
            self.warn(
                f"a line of {length:,} pieces is longer than the model was trained on ({limit}, "
                "data.max_length); such lines are translated in parts"
            )
            self._warned = True

    def _assemble(
        self,
        source: str,
        units: Sequence[Unit],
        found: Sequence[Sequence[Choice]],
        decoding: DecodingSettings,
    ) -> Translation:
        """Return the translation of a text from the hypotheses of its units."""
        count = max((len(choices) for choices in found), default=1)
        n_best = [
            # The k-th best of a line in parts is made of the k-th best of each.
            self._candidate(units, [each[min(k, len(each) - 1)] for each in found], decoding)
            for k in range(count)
        ]
        return Translation(**vars(n_best[0]), source=source, n_best=n_best)

    def _candidate(
        self,
        units: Sequence[Unit],
        choices: Sequence[Choice],
        decoding: DecodingSettings,
    ) -> Candidate:
        hypotheses = [choice.hypothesis for choice in choices]
        utilities = [choice.utility for choice in choices if choice.utility is not None]
        texts = [self.tokenizer.decode_target(h.tokens) for h in hypotheses]
        text = _joined(units, texts)
        assert "\n" not in text and "\r" not in text, "search let a line break through"
        log_probability = sum((h.log_probability for h in hypotheses), 0.0)
        ids = [id_ for h in hypotheses for id_ in h.tokens]
        length = sum(len(h.token_log_probabilities) for h in hypotheses)
        return Candidate(
            text,
            log_probability,
            score=hypotheses[0].score
            if len(hypotheses) == 1
            else log_probability / max(length, 1) ** decoding.length_penalty,
            tokens=self.tokenizer.target_pieces(ids),
            ids=ids,
            truncated=any(h.truncated for h in hypotheses),
            parts=[
                Part(unit.request.text, unit.ids, hypothesis.tokens)
                for unit, hypothesis in zip(units, hypotheses, strict=True)
            ],
            utility=fmean(utilities) if utilities else None,
        )


def _joined(units: Sequence[Unit], texts: Sequence[str]) -> str:
    """Return the line that the translations of its units make; that of a single one as it is."""
    if len(texts) < 2:
        return "".join(texts)
    return join_segments([Segment(unit.request.text, unit.spaced) for unit in units], texts)


def _load_member(
    path: Path | str, device: torch.device, dtype: torch.dtype, attention: str
) -> Member:
    loaded = load_model(path, device=device)
    plan = resolve(
        attention,
        device=device,
        dtype=dtype,
        dropout=0.0,
        training=False,
        head_width=loaded.settings.model.d_model // loaded.settings.model.heads,
        encoder_forms=loaded.settings.model.encoder_forms,
        window=loaded.settings.model.window,
    )
    return Member(loaded._replace(model=loaded.model.to(dtype)), plan)
