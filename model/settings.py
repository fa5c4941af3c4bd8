"""All settings of a run: five frozen sections, read from TOML, written back in full.

This file imports no torch, so that `tfm tokenizer` and `--dump-config` stay quick.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import tomli_w

from tfm.data.errors import OptionError, SettingsError
from tfm.data.settings import (
    DataSettings,
    TokenizerSettings,
    as_written,
    nearest,
    read_section,
    require,
)
from tfm.model.decoding import DecodingSettings

__all__ = [
    "CONFIGS",
    "PHASES",
    "SECTIONS",
    "SIZES",
    "DecodingSettings",
    "ModelSettings",
    "Override",
    "Settings",
    "TrainingSettings",
    "presets",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings:
    """`[model]`: the architecture. It is stored with the weights; the attention backend never is.

    Names follow Vaswani et al. 2017, section 3. The defaults are the size `small`.
    """

    d_model: int = 256
    d_ff: int = 1024  # inner width; SwiGLU uses 2/3 of it so that the parameter count matches
    heads: int = 4
    encoder_layers: int = 3
    decoder_layers: int = 3
    dropout: float = 0.1  # on each sub-layer's output and on embeddings plus positions (5.4)
    attention_dropout: float = 0.0  # on the attention weights; above 0 rules out flash kernels
    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    norm: Literal["post", "pre"] = "pre"  # the paper is "post"; "pre" trains more easily
    encoder_attention: Literal["full", "local", "linear"] = "full"  # all but "full" grow with N
    window: int = 128  # "local": a piece sees those at most window / 2 before and after it
    full_every: int = 0  # beside "local" and "linear": every k-th encoder layer is full; 0: none

    def __post_init__(self) -> None:
        for key in ("d_model", "d_ff", "heads", "encoder_layers", "decoder_layers"):
            require(getattr(self, key) >= 1, key, getattr(self, key), "must be at least 1")
        for key in ("encoder_layers", "decoder_layers"):  # or a slip of the finger takes for ever
            require(getattr(self, key) <= 1000, key, getattr(self, key), "must be at most 1000")
        require(
            self.d_model % self.heads == 0,
            "heads",
            self.heads,
            f"must divide `d_model` ({self.d_model})",
        )
        require(self.d_model % 2 == 0, "d_model", self.d_model, "must be even (sine and cosine)")
        rule = "must be even and at least 2: half of it on each side"
        require(self.window >= 2 and self.window % 2 == 0, "window", self.window, rule)
        rule = "must be 0 (no full layer) or at least 2; for 1 set `encoder_attention` to full"
        require(self.full_every == 0 or self.full_every >= 2, "full_every", self.full_every, rule)
        for key in ("dropout", "attention_dropout"):
            require(
                0 <= getattr(self, key) < 1,
                key,
                getattr(self, key),
                "must be at least 0 and below 1",
            )
        require(
            self.encoder_attention != "linear" or self.attention_dropout == 0,
            "attention_dropout",
            self.attention_dropout,
            'must be 0 with `encoder_attention` "linear", which forms no weights',
        )

    @property
    def encoder_forms(self) -> tuple[Literal["full", "local", "linear"], ...]:
        """The form of self-attention in each encoder layer, the first layer first."""
        return tuple(
            "full" if self.full_every and layer % self.full_every == 0 else self.encoder_attention
            for layer in range(1, self.encoder_layers + 1)
        )


# `size = "base"` in a [model] section stands for these; keys beside it override them.
SIZES: dict[str, dict[str, Any]] = {
    # Wu et al. 2021 (Good for Misconceived Reasons), Transformer-Tiny: best on 29,000 pairs
    "tiny": dict(d_model=128, d_ff=256, heads=4, encoder_layers=4, decoder_layers=4, dropout=0.3),
    "small": dict(d_model=256, d_ff=1024, heads=4, encoder_layers=3, decoder_layers=3, dropout=0.1),
    # Vaswani et al. 2017, table 3
    "base": dict(d_model=512, d_ff=2048, heads=8, encoder_layers=6, decoder_layers=6, dropout=0.1),
    "big": dict(d_model=1024, d_ff=4096, heads=16, encoder_layers=6, decoder_layers=6, dropout=0.3),
}


# The settings of `[training]` that say how long each phase before the last one is, in their order.
PHASES = ("both_directions_steps", "backward_steps", "forward_steps")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSettings:
    """`[training]`: the recipe."""

    steps: int = 10_000
    # Above 0, training takes so many seconds (`--time`); `steps` and the steps of phases then say
    # only what the schedule looks like, which is bent to the steps that fit
    # (`tfm.model.training.budget`).
    time: float = 0.0
    batch_tokens: int = 4096  # sentences times the longest side of any of them, padding included
    accumulate: int = 1  # batches per step; the loss is normalised over all their target tokens
    learning_rate: float = 1e-3  # the peak, reached at the end of the warm-up
    warmup_steps: int = 1000
    schedule: Literal["inverse_sqrt", "cosine"] = "inverse_sqrt"
    weight_decay: float = 0.0  # above 0 Adam becomes AdamW (Loshchilov and Hutter 2019)
    beta1: float = 0.9
    beta2: float = 0.98
    label_smoothing: float = 0.1
    # What two views of each batch are to agree on, at twice the time and memory of a step:
    # "r-drop" (Liang et al. 2021) draws dropout twice; "simcut" (Gao et al. 2022) also cuts
    # embeddings out of the second view. `tfm.model.training.consistency` has the formulas.
    consistency: Literal["none", "r-drop", "simcut"] = "none"
    consistency_weight: float = 3.0  # alpha; the papers take 5 for r-drop and 3 for simcut
    cutoff: float = 0.05  # simcut's p: how probable it is that a token's embedding becomes zero
    clip: float = 1.0  # largest gradient norm; 0 switches clipping off
    seed: int = 1
    validate_every: int = 500
    validate_sentences: int = 1000  # at most so many are translated for BLEU; all count for loss
    validate_samples: int = 2  # of these, so many are shown with their references
    metric: Literal["bleu", "loss"] = "bleu"  # what "best" and patience mean
    checkpoint_every: int = 500
    average_last: int = 5  # checkpoints whose mean competes with the best one at the end
    keep_last: int = 0  # checkpoints whose weights stay on disk, if more than are averaged
    keep_best: int = 1  # validations whose weights stay on disk
    # Steps of the phases before the last one, in their order; 0 leaves one out. Each phase has a
    # learning rate and moments of its own, and goes on from the weights of the one before.
    # Both directions, each pair also the other way round (Ding et al. 2021, arXiv 2109.07780; Gao
    # et al. 2022).
    both_directions_steps: int = 0
    # The way back; then the network translates the targets of the training corpus, and what follows
    # learns from these pairs too (back-translation, for data diversification: Nguyen et al. 2020).
    backward_steps: int = 0
    # The direction asked for; then it translates the sources, and the last phase learns from these
    # pairs too (the other half of data diversification; Kim and Rush 2016, section 3.2).
    forward_steps: int = 0
    # Subword regularisation: each epoch sees the training corpus in other pieces. The first is for
    # a BPE tokenizer: p of BPE-dropout (Provilkov et al. 2020 take 0.1). The other is for a unigram
    # tokenizer: alpha of its sampling (Kudo 2018 takes 0.1 to 0.5; the larger, the tamer).
    subword_dropout: float = 0.0
    subword_alpha: float = 0.0
    # Above 0, an exponential moving average of the weights is what is validated and saved (Polyak
    # and Juditsky 1992); it remembers about 1 / (1 - ema_decay) steps.
    ema_decay: float = 0.0
    patience: int = 0  # validations without a new best before stopping; 0 never stops early
    # Compile the layers by torch.compile: the same gradient up to rounding, in less time once the
    # first steps have been waited for. On a CPU it needs a C++ compiler, on a GPU Triton.
    compile: bool = False
    # Keep the inputs of the layers only, and compute the rest again in the backward pass (Chen et
    # al. 2016): much less memory for a third more arithmetic, and the same gradient.
    gradient_checkpointing: bool = False
    # Write the records of metrics.jsonl into DIR/tensorboard too; needs tfm[tensorboard].
    tensorboard: bool = False

    @property
    def phased(self) -> bool:
        """Whether the recipe has more than one phase."""
        return any(getattr(self, key) for key in PHASES)

    def __post_init__(self) -> None:
        for key in (
            "steps",
            "batch_tokens",
            "accumulate",
            "validate_every",
            "checkpoint_every",
            "keep_best",
        ):
            require(getattr(self, key) >= 1, key, getattr(self, key), "must be at least 1")
        for key in (
            *PHASES,
            "warmup_steps",
            "patience",
            "average_last",
            "keep_last",
            "validate_sentences",
            "validate_samples",
            "seed",
        ):
            require(getattr(self, key) >= 0, key, getattr(self, key), "must be at least 0")
        for key in ("weight_decay", "clip", "consistency_weight", "subword_alpha"):
            require(getattr(self, key) >= 0, key, getattr(self, key), "must be at least 0")
        require(self.time >= 0, "time", self.time, "must be at least 0")
        require(self.learning_rate > 0, "learning_rate", self.learning_rate, "must be above 0")
        for key in ("label_smoothing", "beta1", "beta2", "cutoff", "ema_decay", "subword_dropout"):
            require(
                0 <= getattr(self, key) < 1,
                key,
                getattr(self, key),
                "must be at least 0 and below 1",
            )
        before_last = 0
        for key in PHASES:
            before_last += getattr(self, key)
            others = ", with the phases before it" if before_last > getattr(self, key) else ""
            rule = f"must be below `steps` ({self.steps}){others}"
            require(before_last < self.steps, key, getattr(self, key), rule)
        require(
            not (self.subword_dropout and self.subword_alpha),
            "subword_alpha",
            self.subword_alpha,
            "must be 0 beside `subword_dropout`: they are for different tokenizers",
        )


# A syntax error, a number of thousands of digits, nesting that is too deep for the parser.
_NOT_TOML = (ValueError, RecursionError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Everything a run is made of. Equal settings, data and seed give equal weights (on CPU)."""

    data: DataSettings = field(default_factory=DataSettings)
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    decoding: DecodingSettings = field(default_factory=DecodingSettings)

    @classmethod
    def read(cls, config: str | Path | None, overrides: Sequence["str | Override"] = ()) -> Self:
        """Read a TOML file or a preset by name, then apply `section.key=value` overrides in order.

        Raises:
            SettingsError: for a missing file, bad TOML, an unknown key, a wrong type or range.
        """
        where, text = ("defaults", "") if config is None else _find(config)
        try:
            tables = tomllib.loads(text)
        except _NOT_TOML as error:
            raise SettingsError(f"{where}: not valid TOML: {error}") from None
        return cls.from_tables(tables, where, overrides)

    @classmethod
    def from_tables(
        cls, tables: Mapping[str, Any], where: str, overrides: Sequence["str | Override"] = ()
    ) -> Self:
        """Build the settings from parsed TOML tables; `where` is what errors call their place."""
        for name, table in tables.items():
            _check_section(name, where)
            if not isinstance(table, dict):
                raise SettingsError(
                    f"{where}: `{name}` must be a section, but is {as_written(table)}."
                )
        merged: dict[str, dict[str, Any]] = {name: dict(tables.get(name, {})) for name in SECTIONS}
        merged["model"] = _expand_size(merged["model"], f"{where}: [model]")
        origins: dict[str, dict[str, str]] = {name: {} for name in SECTIONS}
        for item in overrides:
            override = Override.parse(item) if isinstance(item, str) else item
            values = override.values()
            merged[override.section] |= values
            origins[override.section] |= dict.fromkeys(values, override.origin)
        return cls(
            **{
                name: read_section(type_, merged[name], f"{where}: [{name}]", origins[name])
                for name, type_ in SECTIONS.items()
            }
        )

    def to_toml(self) -> str:
        """Return all settings as TOML that `read` turns back into an equal object."""
        return tomli_w.dumps(asdict(self))


SECTIONS: dict[str, type[Any]] = {
    "data": DataSettings,
    "tokenizer": TokenizerSettings,
    "model": ModelSettings,
    "training": TrainingSettings,
    "decoding": DecodingSettings,
}


class Override(NamedTuple):
    """A value that replaces the file's; `origin` is what errors call the place it came from."""

    section: str
    key: str
    value: Any
    origin: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `section.key=value`; a value that is no TOML is a string: `model.norm=post`."""
        origin = f"--set {text}"
        place, equals, value = text.partition("=")
        section, dot, key = (part.strip() for part in place.partition("."))
        if not (equals and dot and section and key):
            raise OptionError(f"{origin}: must look like section.key=value")
        try:
            return cls(section, key, tomllib.loads(f"value = {value}")["value"], origin)
        except _NOT_TOML:
            return cls(section, key, value.strip(), origin)

    def values(self) -> dict[str, Any]:
        """Return what it changes in its section.

        Raises:
            OptionError: if there is no such section, or no such size of a model.
        """
        values = {self.key: self.value}
        try:
            _check_section(self.section, self.origin)
            # A size replaces the numbers that stand in the file.
            return _expand_size(values, self.origin) if self.section == "model" else values
        except SettingsError as error:
            raise OptionError(str(error)) from None


# Beside this package in the tree and in both installs. importlib.resources cannot be asked: a
# folder without Python files has no readable path under the import hook of an editable install.
CONFIGS = Path(__file__).resolve().parent.parent / "configs"


def presets() -> list[str]:
    """Return the names that `--config` takes besides a file."""
    return sorted(path.stem for path in CONFIGS.glob("*.toml"))


def _find(config: str | Path) -> tuple[str, str]:
    """Return what errors call the place of the settings, and their text."""
    path, where = Path(config), str(config)
    if not path.is_file():
        if where not in presets():
            names = ", ".join(presets())
            raise SettingsError(f"--config {where}: neither a file nor a preset; presets: {names}")
        path, where = CONFIGS / f"{where}.toml", f"preset {where}"
    try:
        return where, path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None


def _check_section(name: str, place: str) -> None:
    if name not in SECTIONS:
        raise SettingsError(f"{place}: unknown section [{name}]; {nearest(name, SECTIONS)}")


def _expand_size(table: dict[str, Any], place: str) -> dict[str, Any]:
    if "size" not in table:
        return table
    rest = {key: value for key, value in table.items() if key != "size"}
    size = table["size"]
    if not isinstance(size, str) or size not in SIZES:
        names = ", ".join(f'"{name}"' for name in SIZES)
        raise SettingsError(f"{place}: `size` must be one of {names}, but is {as_written(size)}.")
    return SIZES[size] | rest
