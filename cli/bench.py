"""`tfm bench`: how fast training, translation and attention are here; what long documents cost."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfm.cli import console
from tfm.cli.bench_attention import bench_attention
from tfm.cli.bench_documents import bench_documents
from tfm.cli.bench_translate import bench_translate
from tfm.cli.config import load_settings
from tfm.cli.options import (
    Attention,
    Config,
    Debug,
    Device,
    Json,
    Precision,
    Set,
    Source,
    Target,
    TokenizerFile,
)

if TYPE_CHECKING:
    from tfm.model.benchmarks.training import TrainingSpeed
    from tfm.model.training.material import Order

bench = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
bench.command(
    "attention",
    short_help="Measure time and memory of attention as N grows, by backend and form.",
    epilog="Example: tfm bench attention --lengths 256,1024,4096 -o runs/bench",
)(bench_attention)
bench.command(
    "documents",
    short_help="Train full, local and linear encoders on documents; compare quality and cost.",
    epilog="Example: tfm bench documents --set model.window=64 --set model.full_every=3",
)(bench_documents)
bench.command(
    "translate",
    short_help="Measure translation: sentences per second in batches, and the time of one alone.",
    epilog="Example: tfm bench translate --set model.d_model=512 --beams 5 --precisions fp32",
)(bench_translate)

Corpus = Annotated[
    str, typer.Option("--train", metavar="CORPUS", help="Pairs whose lengths the batches have.")
]
Seconds = Annotated[float, typer.Option("--seconds", min=0.0, help="How long to train for.")]


@bench.command(
    "train",
    short_help="Measure training: tokens per second, share of the peak, where the time goes.",
    epilog="Example: tfm bench train --set model.d_model=512 --set model.d_ff=2048 --seconds 60",
)
def bench_train(
    config: Config = None,
    set_: Set = None,
    train: Corpus = "builtin:20000",
    tokenizer: TokenizerFile = None,
    source: Source = None,
    target: Target = None,
    seconds: Seconds = 30.0,
    device: Device = "auto",
    precision: Precision = "auto",
    attention: Attention = "auto",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure the steps of `tfm train`: the same code, on random first weights; nothing is saved.

    Tokens per second are source and target tokens with end of sentence, without padding. The peak
    is that of large matrix products here, in the same precision and with the same threads
    (OMP_NUM_THREADS).

    To compare with another program, give both the same network, corpus, tokenizer and batches. The
    Marian of HF transformers with post-norm, 3+3 layers, d 256, ff 1024, 4 heads, dropout 0.3 and
    a vocabulary of 8000 in batches of 4096 tokens is: --tokenizer m.model --train data/train --set
    model.d_model=256 --set model.d_ff=1024 --set model.heads=4 --set model.encoder_layers=3 --set
    model.decoder_layers=3 --set model.dropout=0.3 --set model.norm=post --set
    training.batch_tokens=4096

    A CORPUS is PREFIX (two files, PREFIX.en and PREFIX.de), a .tsv, .csv, .jsonl or .parquet file,
    hf:NAME or builtin[:N]; `tfm train --help` says more.
    """
    if not seconds:
        raise typer.BadParameter("--seconds 0: must be above 0")
    settings = load_settings(config, set_, source=source, target=target)
    from tfm.model.training.material import Order

    order = Order(
        settings=settings,
        train=train,
        valid=None,
        directory=Path(),  # nothing is written
        tokenizer=tokenizer,
        device=device,
        precision=precision,
        attention=attention,
    )
    speed, conditions = _measure(order, seconds)
    if as_json:
        print(json.dumps(speed.to_json() | conditions))
    else:
        _print(speed, conditions)


def _measure(order: "Order", seconds: float) -> tuple["TrainingSpeed", dict[str, Any]]:
    """Return the speed of training what `order` asks for, and the conditions it holds under."""
    from tfm.model.benchmarks.training import measure_training
    from tfm.model.memory import keep_memory_for_training
    from tfm.model.training.material import gather
    from tfm.model.training.recipe import Machine, build_learner
    from tfm.model.training.reporting import Silence

    keep_memory_for_training()
    settings = order.settings
    machine = Machine.choose(order)
    material = gather(order, tokenizer=order.tokenizer, reporter=Silence())
    learner = build_learner(settings, material, machine)
    conditions = machine.describe() | {
        "train": order.train,
        "vocabulary": material.tokenizer.target_size,
        "parameters": learner.model.num_parameters,
        "model": asdict(settings.model),
        "batch_tokens": settings.training.batch_tokens,
    }
    return measure_training(learner, material.corpus, settings, seconds=seconds), conditions


def _print(speed: "TrainingSpeed", conditions: Mapping[str, Any]) -> None:
    figures = speed.to_json()
    for name, value in conditions.items():
        console.note(f"{name}: {value}")
    print(f"{'tokens per second':<24}{figures['tokens_per_s']:>12,.0f}")
    print(f"{'padding':<24}{figures['padding']:>12.1%}")
    print(f"{'GFLOP per second':<24}{figures['gflops_per_s']:>12,.1f}")
    print(f"{'peak':<24}{figures['peak_gflops_per_s']:>12,.1f}")
    print(f"{'share of peak':<24}{figures['share_of_peak']:>12.1%}")
    print()
    print(f"{'phase of a step':<24}{'ms':>12}{'share':>9}")
    for name, phase in figures["phases"].items():
        print(f"{name:<24}{phase['ms_per_step']:>12,.1f}{phase['share']:>9.1%}")
