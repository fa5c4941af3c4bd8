"""Text in, text out: a model directory as a translator.

Any text is one line to it, and gives one line: blank text gives an empty translation without a
call of the model, and text longer than the model was trained on is cut, translated in parts and
joined again.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from tfm.data.tokenizer import EOS
from tfm.model.attention.choice import AttentionPlan, resolve
from tfm.model.checkpoint import LoadedModel, load_model
from tfm.model.device import PRECISIONS, resolve_device, resolve_precision
from tfm.model.request import Request
from tfm.model.search.beam import beam_search
from tfm.model.search.beams import Beams, Hypothesis
from tfm.model.search.constraints import Constraints, constraints_of, require_possible
from tfm.model.search.ensemble import Ensemble, require_same_vocabulary
from tfm.model.search.mbr import Choice, rerank
from tfm.model.search.prepared import prepare
from tfm.model.settings import DecodingSettings
from tfm.model.translation import Translation, assemble
from tfm.model.units import Unit, join_units, units_of
from tfm.model.watched import Watched

__all__ = ["Member", "Translation", "Translator"]


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
        others: what else is asked about each next piece (`tfm.model.search.ensemble`). All
            settings are those of the first model.
        quantize: none or int8: products in 8 bits, on a CPU.

    Attributes:
        models: all networks, `model` first.
        limit: most pieces of a text that all of them were trained on.
        decoding: how it searches where a call does not say otherwise; yours to replace.
        warn: is called with what the user should know, once; `warnings.warn` unless replaced.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        plan: AttentionPlan,
        *,
        others: Sequence[Member] = (),
        quantize: str = "none",
    ) -> None:
        self.model, self.tokenizer, self.settings = loaded
        self.plan, self.quantize = plan, quantize
        members = [Member(loaded, plan), *others]
        self.models = [member.loaded.model for member in members]
        self.limit = min(member.loaded.settings.data.max_length for member in members)
        self.decoding = self.settings.decoding
        self.warn: Callable[[str], None] = warnings.warn
        self._warned: set[str] = set()
        self._forbidden = self.tokenizer.forbidden_ids
        for member in members:
            member.loaded.model.use_attention(member.plan)
        self._plans = [member.plan for member in members]
        quantized = quantize == "int8"
        self._prepared = Ensemble([prepare(model, quantize=quantized) for model in self.models])

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        ensemble: Sequence[Path | str] = (),
        device: str = "auto",
        precision: str = "auto",
        attention: str = "auto",
        quantize: str = "none",
    ) -> Self:
        """Load a model directory, as `tfm train` leaves it.

        Args:
            ensemble: other model directories, asked together with the first.
            device: auto, cpu, cuda or cuda:N.
            precision: auto, fp32, bf16 or fp16: of the weights and of all but sums and softmax.
            attention: auto, or a backend by name; see `tfm.model.attention.choice`.
            quantize: none, or int8: products in 8 bits, on a CPU, at a small cost in quality.

        Raises:
            CheckpointError: for a directory that is no model's, or is damaged, or has another
                vocabulary or direction than the first.
            BackendError: for a device, precision, backend or 8 bits that cannot run here.
        """
        where = resolve_device(device)
        dtype = resolve_precision(precision, where)
        first = _load_member(path, where, dtype, attention)
        others = []
        for other_path in ensemble:
            other = _load_member(other_path, where, dtype, attention)
            require_same_vocabulary(Path(path), first.loaded, Path(other_path), other.loaded)
            others.append(other)
        return cls(*first, others=others, quantize=quantize)

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
            n_best: how many alternatives, at most `beam` if they are not sampled; with `mbr` at
                most `beam` in any case, and only those of distinct text.
            beam, length_penalty, max_length, mbr: in place of those of `self.decoding`.

        Raises:
            TypeError: for one string, whose characters would be taken for texts.
            SettingsError: for an option out of range.
            DataError, SettingsError: for a request that `require_possible` refuses.
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
        lines = self._units(requests)
        units = [unit for line in lines for unit in line]
        found = iter(self._search(self._prepared, units, decoding, n_best))
        return [
            assemble(request.text, line, [next(found) for _ in line], decoding, self.tokenizer)
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
        mbr: str | None = None,
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
                mbr=mbr,
            )

    def translate_growing(self, text: str | Request, show: Callable[[str], None]) -> Translation:
        """Return the translation of one text, as `translate_all` does.

        `show` sees it grow: before each step of search the best hypothesis so far, which the next
        one may replace by another. Of a long text one part grows after the other.
        """
        request = Request(text) if isinstance(text, str) else text
        (units,) = self._units([request])
        done: list[str] = []
        found: list[list[Choice]] = []

        def watch(beams: Beams) -> None:
            growing = self.tokenizer.decode_target(beams.tokens[0, 0, 1:].tolist())
            show(join_units(units[: len(done) + 1], [*done, growing]))

        for unit in units:
            found += self._search(Watched(self._prepared, watch), [unit], self.decoding, 1)
            done.append(self.tokenizer.decode_target(found[-1][0].hypothesis.tokens))
        return assemble(request.text, units, found, self.decoding, self.tokenizer)

    def require_possible(self, request: Request) -> None:
        """Refuse a request that cannot be met, which would end the translation of all others.

        Raises:
            DataError: for one that contradicts itself, or asks for a line break.
            SettingsError: for required words where `self.decoding` is no beam search.
        """
        require_possible(request, self.tokenizer, self.decoding)

    def describe(self, *, searches: bool = True) -> list[str]:
        """Return lines that say where, in which precision and by which attention it runs.

        Args:
            searches: whether it is to translate, which takes other products than scoring does.
        """
        weight = self.model.target_embedding.weight
        precision = next(name for name, dtype in PRECISIONS.items() if dtype == weight.dtype)
        steps = "search steps: the formula in batched products, or SDPA; keys are cached"
        plans = dict.fromkeys(line for plan in self._plans for line in plan.describe())
        products = "" if self.quantize == "none" else f", products in {self.quantize}"
        lines = [f"device: {weight.device}, {precision}{products}", *plans]
        lines += [steps] if searches else []
        if len(self.models) > 1:
            lines.append(f"ensemble: {len(self.models)} networks, the mean of their probabilities")
        return lines

    def _search(
        self, model: Ensemble, units: Sequence[Unit], decoding: DecodingSettings, n_best: int
    ) -> list[list[Choice]]:
        """Return the best hypotheses of each unit: the one place that searches."""
        constraints = [constraints_of(unit.request, self.tokenizer) for unit in units]
        found = beam_search(
            model,
            [[*unit.ids, EOS] for unit in units],
            decoding,
            forbidden=self._forbidden,
            constraints=constraints,
            n_best=n_best if decoding.mbr == "none" else max(n_best, decoding.beam),
        )
        if decoding.mbr == "none":
            return [[Choice(hypothesis) for hypothesis in hypotheses] for hypotheses in found]
        decode = self.tokenizer.decode_target
        candidates = [_most_met(*each) for each in zip(found, constraints, strict=True)]
        return [
            rerank(each, [decode(h.tokens) for h in each], sampled=decoding.sampling)[:n_best]
            for each in candidates
        ]

    def _units(self, requests: Sequence[Request]) -> list[list[Unit]]:
        lines = units_of(requests, self.tokenizer, limit=self.limit, too_long=self._warn_of_length)
        pairs = zip(requests, lines, strict=True)
        if any(request.required and len(units) > 1 for request, units in pairs):
            self._warn_once(
                "required", "required words of a line that is translated in parts are left out"
            )
        return lines

    def _warn_of_length(self, length: int) -> None:
        self._warn_once(
            "length",
            f"a line of {length:,} pieces is longer than the model was trained on "
            f"({self.limit}, data.max_length); such lines are translated in parts",
        )

    def _warn_once(self, about: str, text: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            self.warn(text)


def _most_met(hypotheses: Sequence[Hypothesis], asked: Constraints) -> list[Hypothesis]:
    """Return those that have the most of the required words: all words, if one is finished."""
    counts = [asked.met(hypothesis.tokens) for hypothesis in hypotheses]
    most = max(counts, default=0)
    return [each for each, count in zip(hypotheses, counts, strict=True) if count == most]


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
