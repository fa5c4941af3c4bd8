"""Settings for whoever gives none: chosen by the number of pairs and the machine.

    pairs, up to  network                     vocabulary  dropout  decay  a step  passes  peak rate
    10,000        d 128, ff 256, 3+3 layers        1,000      0.3    0     2,048     100       5e-3
    50,000        d 128, ff 256, 4+4 layers        8,000      0.3    0.1   4,096      90       5e-3
    500,000       d 512, ff 1024, 6+6 layers      10,000      0.3    0     4,096      50       5e-4
    3,000,000     d 512, ff 2048, 6+6 layers      32,000      0.1    0    25,000      20       7e-4
    more          d 512, ff 2048, 6+6 layers      37,000      0.1    0    25,000      20       7e-4

A CPU, which the networks of d 512 would take weeks, gets in their place d 256, ff 1024, 3+3 layers,
with dropout 0.2 and a peak rate of 1e-3; the first two rows hold there too. `decay` is that of the
weights; `a step` counts tokens of the longer side of each pair, and is cut into as many batches as
fit the device and there are processes. Everywhere vocabularies are joint BPE, the rate rises over a
tenth of the steps, 500 or 4,000 of them at most, and falls as a cosine, and a moving average of the
weights, of a fifth of the steps and at most 1,000, is what is validated and saved.

The second row was measured on Multi30k (29,000 pairs); the third is fairseq's for IWSLT 2014, the
last ones follow Vaswani et al. 2017, as the presets do. The others lie between, or beside, them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch

from tfm.data.counts import counted
from tfm.model.device import resolve_device
from tfm.model.settings import SIZES, Override, Settings
from tfm.model.training.directory import RunDirectory, holds_run
from tfm.model.training.distributed import Ranks
from tfm.model.training.material import Order, require_pairs
from tfm.model.training.state import read_state, stored_settings

CHARACTERS = 4  # that a piece is taken for
CPU_BATCH = 4096  # tokens: larger batches are no faster there
GPU_BATCH = 4096  # tokens for each 8 GiB of the GPU's memory
FEWEST_STEPS, MOST_STEPS = 200, 100_000  # the paper's base model takes the latter


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Args:
        model: values of [model].
        step: tokens per step, those of the longer side of each pair.
        passes: how often training sees each pair.
        why: what speaks for this network.
        decay: weight decay.
    """

    pairs: float
    model: dict[str, Any]
    vocabulary: int
    step: int
    passes: int
    rate: float
    warmup: int
    why: str
    decay: float = 0.0


LOW = {"encoder_layers": 3, "decoder_layers": 3, "dropout": 0.3}
IWSLT = {"d_ff": 1024, "heads": 4, "dropout": 0.3}
TABLE = (
    Row(10_000, SIZES["tiny"] | LOW, 1000, 2048, 100, 5e-3, 500, "so few pairs teach little more"),
    Row(
        50_000,
        SIZES["tiny"] | {"dropout": 0.3},
        8000,
        4096,
        90,
        5e-3,
        500,
        "on so few pairs larger ones do worse (Wu et al. 2021)",
        decay=0.1,
    ),
    Row(500_000, SIZES["base"] | IWSLT, 10_000, 4096, 50, 5e-4, 4000, "fairseq's for IWSLT 2014"),
    Row(3e6, SIZES["base"], 32_000, 25_000, 20, 7e-4, 4000, "the base model of Vaswani et al."),
    Row(math.inf, SIZES["base"], 37_000, 25_000, 20, 7e-4, 4000, "that of Vaswani et al. 2017"),
)
ON_CPU = SIZES["small"] | {"dropout": 0.2}


class Survey(NamedTuple):
    """What is to be known of a corpus: pairs that are not blank, and the characters of each pair's
    longer side."""

    pairs: int
    characters: int

    @property
    def pieces(self) -> float:
        """About how many tokens a pair is wide, end of sentence included."""
        return self.characters / CHARACTERS / max(self.pairs, 1) + 1


class Place(NamedTuple):
    """Where it is to run: how many tokens a batch may have there, and how many processes share."""

    cpu: bool
    batch: int
    processes: int = 1


def choose_together(order: Order, tell: Callable[[str], None], ranks: Ranks) -> Order:
    """Return what `with_settings` does; the first of several ranks chooses for all."""
    if order.overrides is None:
        return order
    return ranks.from_first(lambda: with_settings(order, tell, processes=ranks.size))


def with_settings(
    order: Order, tell: Callable[[str], None], *, processes: int = 1, anew: bool = False
) -> Order:
    """Return `order` with settings: those given; else those of its run; else ones chosen here.

    Args:
        tell: hears what was chosen and why.
        processes: that take each step together.
        anew: choose, whatever is in the order's directory.

    Raises:
        UserError: if the corpus, the directory, the run that is there, or an override is at fault.
    """
    if order.overrides is None:
        return order
    if not anew and holds_run(RunDirectory(order.directory)):
        return replace(order, settings=settings_of_run(order), overrides=None)
    require_pairs(order)
    survey, place = look_at(order), look_around(order, processes)
    settings = choose(survey, place, order.overrides)
    for line in describe(settings, survey, place, given=order.tokenizer is not None):
        tell(line)
    return replace(order, settings=settings, overrides=None)


def settings_of_run(order: Order) -> Settings:
    """Return the settings in the checkpoint of the order's directory, overridden as it says.

    Raises:
        CheckpointError: if it cannot be read.
    """
    last = RunDirectory(order.directory).last
    stored = stored_settings(read_state(last), last) or Settings()
    return Settings.from_tables(asdict(stored), str(last), order.overrides or ())


def look_at(order: Order) -> Survey:
    """Read the training corpus once, to count it."""
    pairs = characters = 0
    for pair in order.pairs(order.train, "train"):
        if pair.source.strip() and pair.target.strip():
            pairs += 1
            characters += max(len(pair.source), len(pair.target))
    return Survey(pairs, characters)


def look_around(order: Order, processes: int) -> Place:
    """Ask the device of `order` how much a batch may hold."""
    device = resolve_device(order.device)
    if device.type == "cpu":
        return Place(True, CPU_BATCH, processes)
    memory = torch.cuda.get_device_properties(device).total_memory
    return Place(False, GPU_BATCH * max(1, round(memory / 2**33)), processes)


def choose(survey: Survey, place: Place, overrides: Sequence[str | Override]) -> Settings:
    """Return settings by the table, but for what `overrides` say.

    Raises:
        SettingsError: if they are wrong, or do not go with the others.
    """
    row = next(row for row in TABLE if survey.pairs <= row.pairs)
    tables = basis(row, survey, place)
    # What depends on the number of steps follows the one that was asked for.
    steps = Settings.from_tables(tables, "chosen settings", overrides).training.steps
    tables["training"] |= pace_of(steps, row)
    return Settings.from_tables(tables, "chosen settings", overrides)


def basis(row: Row, survey: Survey, place: Place) -> dict[str, dict[str, Any]]:
    """Return the settings that do not depend on the number of steps, and that number."""
    slow = place.cpu and row.model["d_model"] > ON_CPU["d_model"]
    batches = math.ceil(row.step / (place.batch * place.processes))  # of each process
    steps = row.passes * survey.pairs * survey.pieces / row.step
    digits = 2 - len(str(round(steps)))
    return {
        "tokenizer": {"vocab_size": row.vocabulary, "kind": "bpe"},
        "model": dict(ON_CPU if slow else row.model),
        "training": {
            "steps": min(max(int(round(steps, digits)), FEWEST_STEPS), MOST_STEPS),
            "batch_tokens": max(1, row.step // (batches * place.processes)),
            "accumulate": batches,
            "learning_rate": 1e-3 if slow else row.rate,
            "schedule": "cosine",
            "weight_decay": row.decay,
            "average_last": 0,  # the moving average takes its place
        },
    }


def pace_of(steps: int, row: Row) -> dict[str, Any]:
    """Return the settings that go with `steps` steps: ten validations, whatever they are."""
    every = max(1, steps // 10)
    return {
        "warmup_steps": min(row.warmup, steps // 10),
        "ema_decay": round(1 - 1 / min(max(steps / 5, 2), 1000), 6),
        "validate_every": every,
        "checkpoint_every": min(every, 1000),
    }


def describe(settings: Settings, survey: Survey, place: Place, *, given: bool) -> list[str]:
    """Return lines that say what was chosen and why.

    Args:
        given: whether the tokenizer is.
    """
    row = next(row for row in TABLE if survey.pairs <= row.pairs)
    model, training, pieces = settings.model, settings.training, survey.pieces
    chosen = basis(row, survey, place)["model"]
    why = "a larger one would take a CPU weeks" if chosen == ON_CPU else row.why
    if any(getattr(model, key) != value for key, value in chosen.items()):
        why = "partly as it was set"
    tokens = training.batch_tokens * training.accumulate * place.processes
    passes = training.steps * tokens / max(survey.pairs * pieces, 1)
    vocabulary = (
        "that of --tokenizer"
        if given
        else f"{settings.tokenizer.vocab_size:,} pieces: in fewer pairs fewer are frequent enough"
    )
    steps = (
        f"chosen steps: {training.steps:,} of {tokens:,} tokens a side, so that each pair is seen "
        f"about {counted(round(passes), 'time')}"
    )
    if training.time:
        steps = (
            f"chosen schedule: that of {counted(training.steps, 'step')} of {tokens:,} tokens a "
            f"side, bent to as many as fit into the time"
        )
    return [
        f"no --config: settings chosen for {counted(survey.pairs, 'pair')} of about "
        f"{counted(round(pieces), 'piece')} on a {'CPU' if place.cpu else 'GPU'}; --set changes "
        f"one, --dump-config shows all",
        f"chosen network: d {model.d_model}, ff {model.d_ff}, {counted(model.heads, 'head')}, "
        f"{model.encoder_layers}+{model.decoder_layers} layers, dropout {model.dropout}: "
        f"{why}",
        f"chosen vocabulary: {vocabulary}",
        steps,
        f"chosen learning rate: {training.learning_rate:g} after "
        f"{counted(training.warmup_steps, 'step')}, then {training.schedule}; weight decay "
        f"{training.weight_decay:g}; a moving average (decay {training.ema_decay:g}) is validated "
        f"and saved",
    ]
