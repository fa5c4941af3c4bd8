"""`tfm bench translate`: how many sentences a second, and how long one takes."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfm.cli import console
from tfm.cli.bench_attention import names, numbers
from tfm.cli.config import load_settings, model_config
from tfm.cli.options import Attention, Config, Debug, Device, Json, Set
from tfm.data.errors import DataError
from tfm.data.lines import read_lines

if TYPE_CHECKING:
    from tfm.data.settings import DataSettings
    from tfm.model.benchmarks.translate import Speed, Work

RANDOM_LENGTH = 16  # pieces that random weights write, if nothing else is said

Model = Annotated[
    Path | None,
    typer.Argument(metavar="MODEL", help="Model directory; random weights without one."),
]
Input = Annotated[
    Path | None,
    typer.Option(
        "--input", "-i", metavar="FILE", help="Lines to translate; built-in sentences if not given."
    ),
]
TokenizerFile = Annotated[
    Path | None,
    typer.Option("--tokenizer", metavar="FILE", help="Tokenizer, for random weights."),
]
Sentences = Annotated[
    int, typer.Option("--sentences", min=1, metavar="N", help="Lines to translate at most.")
]
Beams = Annotated[
    str, typer.Option("--beams", metavar="LIST", help="Widths of the beam; 1 is greedy.")
]
Precisions = Annotated[
    str, typer.Option("--precisions", metavar="LIST", help="Which of fp32, bf16, fp16 and int8.")
]
Length = Annotated[
    int | None,
    typer.Option(
        "--length",
        min=1,
        metavar="N",
        help="Pieces that every translation is forced to have; 16 for random weights, and as the "
        "model likes for a MODEL, if not given.",
    ),
]
Single = Annotated[
    int, typer.Option("--single", min=1, metavar="N", help="Lines to translate one at a time.")
]


def bench_translate(
    model: Model = None,
    config: Config = None,
    set_: Set = None,
    input_: Input = None,
    tokenizer: TokenizerFile = None,
    sentences: Sentences = 1000,
    beams: Beams = "5,1",
    precisions: Precisions = "fp32,bf16",
    length: Length = None,
    single: Single = 40,
    device: Device = "auto",
    attention: Attention = "auto",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure the search of `tfm translate`: the same code, from ids to ids; nothing is written.

    All lines are translated in batches sorted by length, and then the first of them one at a time.
    Without a MODEL the network has random weights of the dimensions that --config and --set give,
    and without a --tokenizer each word of a line counts as one piece. Threads are as many as
    OMP_NUM_THREADS says.

    To compare with another program, give both the same network, lines and tokenizer, and force both
    to translations of the same length.
    """
    from tfm.model.benchmarks.translate import Work
    from tfm.model.device import PRECISIONS, resolve_device
    from tfm.model.memory import keep_freed_memory

    if model is not None and (config or tokenizer):
        raise typer.BadParameter("--config and --tokenizer are for random weights, not for a MODEL")
    settings = load_settings(config if model is None else model_config(model), set_)
    chosen = names(precisions, [*PRECISIONS, "int8"], "--precisions")
    widths = numbers(beams, "--beams")
    where = resolve_device(device)
    keep_freed_memory()
    lines = _lines(input_, settings.data, sentences)
    if model is None:
        work = Work.random(settings, tokenizer, lines, device=where)
        work = work.forced(length or RANDOM_LENGTH)
    else:
        work = Work.load(model, settings, lines, device=where)
        work = work if length is None else work.forced(length)
    speeds = []
    for precision in chosen:
        prepared = work.prepare(precision, attention)
        for beam in widths:
            console.note(f"{precision}, beam {beam}")
            speeds.append(work.measure(prepared, precision, beam, single=single))
    conditions = _conditions(work, model, length)
    if as_json:
        print(json.dumps(conditions | {"rows": [speed.to_json() for speed in speeds]}))
    else:
        _print(speeds, conditions)


def _lines(path: Path | None, data: "DataSettings", most: int) -> list[str]:
    """Return at most so many lines that are not blank, of a file or of the built-in test set."""
    from tfm.data.corpus import read_pairs

    if path is None:
        pairs = read_pairs("builtin", source=data.source, target=data.target, split="test")
        return [pair.source for pair in islice(pairs, most)]
    lines = list(islice((line for line in read_lines(path) if line.strip()), most))
    if not lines:
        raise DataError(f"{path}: has no line to translate")
    return lines


def _conditions(work: "Work", model: Path | None, length: int | None) -> dict[str, Any]:
    """Describe the run: what its figures depend on besides the rows."""
    import torch

    network = work.model
    device = network.target_embedding.weight.device
    return {
        "model": "random weights" if model is None else str(model),
        "network": asdict(network.settings),
        "vocabulary": network.target_vocab,
        "parameters": network.num_parameters,
        "pieces_per_source": round(sum(map(len, work.sources)) / len(work.sources), 2),
        "length": length or (RANDOM_LENGTH if model is None else None),
        "batch_tokens": work.settings.decoding.batch_tokens,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def _print(speeds: Sequence["Speed"], conditions: dict[str, Any]) -> None:
    for name, value in conditions.items():
        console.note(f"{name}: {value}")
    titles = ("sentences/s", "pieces/s", "one at a time, ms")
    print(f"{'precision':<12}{'beam':>6}" + "".join(f"{title:>20}" for title in titles))
    for speed in speeds:
        row = (speed.sentences_per_s, speed.pieces / speed.seconds, speed.ms_one_at_a_time)
        figures = "".join(f"{figure:>20,.1f}" for figure in row)
        print(f"{speed.precision:<12}{speed.beam:>6}{figures}")
