"""`tfm demo`: the whole job on the built-in corpus, as anyone would do it with the other verbs."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfm.cli.console import log
from tfm.cli.evaluate import evaluate
from tfm.cli.inspect_attention import inspect_attention
from tfm.cli.options import Attention, Debug, Device, Precision
from tfm.cli.train import train

if TYPE_CHECKING:
    from tfm.data.corpus import Pair

SHOWN = 4  # sentences of the test set whose translation is printed

Directory = Annotated[
    Path, typer.Option("--output", "-o", metavar="DIR", help="Model directory to leave behind.")
]


def demo(
    output: Directory = Path("runs/demo"),
    device: Device = "auto",
    precision: Precision = "auto",
    attention: Attention = "auto",
    debug: Debug = False,
) -> None:
    """Train on the built-in corpus, translate, score, and draw what the model attends to.

    Nothing is downloaded. Repeated, it goes on where it stopped.
    """
    started = time.monotonic()
    machine: dict[str, Any] = {"device": device, "precision": precision, "attention": attention}
    flags = "".join(f" --{name} {value}" for name, value in machine.items() if value != "auto")
    command = f"tfm train --config demo --train builtin --valid builtin -o {output}{flags}"
    _announce("Train a tokenizer and a model", command)
    train(config="demo", train="builtin", valid="builtin", output=output, **machine)

    _announce(
        "Translate sentences that were not trained on", f"tfm translate {output}{flags} < FILE"
    )
    sentence = _show_translations(output, machine)

    hypotheses = output / "test.de"
    command = f"tfm eval {output} --test builtin -o {hypotheses}{flags}"
    _announce("Score the model on all of the test set", command)
    evaluate(output, test="builtin", output=hypotheses, **machine)

    maps = output / "attention"
    command = f'tfm inspect-attention {output} "{sentence}" -o {maps}{flags}'
    _announce("Show which source words each target word looks at", command)
    inspect_attention(output, sentence, output=maps, **machine)

    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    place = f"The model is in {output}, the maps in {maps}."
    log.print(f"\nDone in {minutes} min {seconds} s. {place}", soft_wrap=True)
    print(f"BLEU = {_bleu(hypotheses):.1f}")


def _announce(what: str, command: str) -> None:
    log.print(f"\n== {what}\n   $ {command}", soft_wrap=True)


def _show_translations(model: Path, machine: Mapping[str, Any]) -> str:
    """Print sentences of the test set with their translations; return the longest of them."""
    from tfm.model.translator import Translator

    pairs = _test_set()[:SHOWN]
    translator = Translator.load(model, **machine)
    translations = translator.translate([pair.source for pair in pairs])
    for pair, translation in zip(pairs, translations, strict=True):
        print(f"{pair.source}\n    {translation}")
    return max((pair.source for pair in pairs), key=len)


def _bleu(hypotheses: Path) -> float:
    from tfm.data.lines import read_lines
    from tfm.model.evaluation import score

    return score(list(read_lines(hypotheses)), [pair.target for pair in _test_set()]).bleu.value


def _test_set() -> "list[Pair]":
    from tfm.data.corpus import read_pairs

    return list(read_pairs("builtin", source="en", target="de", split="test"))
