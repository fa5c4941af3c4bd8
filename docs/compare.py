"""Time tfm and what a user would pick instead in turn, in one run, and print a table of ratios.

    python docs/compare.py train --peer-python peers/bin/python --tokenizer m.model \\
        --train data/train
    python docs/compare.py translate --peer-python peers/bin/python --tokenizer m.model \\
        --input data/test.en

docs/peers.py says what the others do and how to install them. Nothing else may run meanwhile.
"""

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PEERS = Path(__file__).resolve().parent / "peers.py"
HEADS = {128: 4, 256: 4, 512: 8}  # by width; the feed-forward network is four times as wide


def lines_of(command: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Run a command and yield the JSON objects that it prints, one per line."""
    print("$", " ".join(command), file=sys.stderr)
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    yield from map(json.loads, filter(None, done.stdout.splitlines()))


def shape_of_peer(width: int, layers: int) -> list[str]:
    """Return the network's size as options of docs/peers.py."""
    sizes = {"d-model": width, "d-ff": 4 * width, "heads": HEADS[width], "layers": layers}
    return [word for name, size in sizes.items() for word in (f"--{name}", str(size))]


def shape_of_tfm(width: int, layers: int) -> list[str]:
    """Return the same size as options of tfm."""
    sizes = {
        "d_model": width,
        "d_ff": 4 * width,
        "heads": HEADS[width],
        "encoder_layers": layers,
        "decoder_layers": layers,
        "norm": "post",
    }
    return [word for key, size in sizes.items() for word in ("--set", f"model.{key}={size}")]


def train(options: argparse.Namespace) -> None:
    """Compare tokens per second in training, in both precisions at each width."""
    work = ["--tokenizer", options.tokenizer, "--train", options.train]
    work += ["--seconds", str(options.seconds)]
    print("| d | precision | HF MarianMT | tfm | ratio | share of peak |")
    print("|---|---|---|---|---|---|")
    for width in options.widths:
        for precision in ("fp32", "bf16"):
            kind = ["--precision", precision]
            peer = [options.peer_python, str(PEERS), "train", *work, *kind]
            [theirs] = lines_of(
                [*peer, *shape_of_peer(width, 3), "--dropout", str(options.dropout)]
            )
            own = [sys.executable, "-m", "tfm.cli", "bench", "train", "--json", *work, *kind]
            dropout = ["--set", f"model.dropout={options.dropout}"]
            [ours] = lines_of([*own, *shape_of_tfm(width, 3), *dropout])
            slow, fast = theirs["tokens_per_s"], ours["tokens_per_s"]
            share = ours["share_of_peak"]
            print(
                f"| {width} | {precision} | {slow:,.0f} | {fast:,.0f} | {fast / slow:.2f} "
                f"| {share:.0%} |",
                flush=True,
            )


def translate(options: argparse.Namespace) -> None:
    """Compare sentences per second in batches, and milliseconds of one sentence by itself."""
    work = ["--tokenizer", options.tokenizer, "--input", options.input]
    print("| d | layers | beam | program | precision | sentences/s | one alone, ms |")
    print("|---|---|---|---|---|---|---|")
    for width, layers, beam in itertools.product(options.widths, options.layers, options.beams):
        forced = ["--length", str(options.length)]
        peer = [options.peer_python, str(PEERS), "translate", *work, *forced, "--beam", str(beam)]
        for found in lines_of([*peer, *shape_of_peer(width, layers)]):
            row(width, layers, beam, found["peer"], found)
        own = [sys.executable, "-m", "tfm.cli", "bench", "translate", "--json", *work, *forced]
        own += ["--beams", str(beam), "--precisions", "fp32,bf16,int8"]
        [ours] = lines_of([*own, *shape_of_tfm(width, layers)])
        for found in ours["rows"]:
            alone = {"ms_per_sentence": found["ms_one_at_a_time"]}
            row(width, layers, beam, "tfm", found | alone)


def row(width: int, layers: int, beam: int, program: str, found: dict[str, Any]) -> None:
    """Print a line of the table of searches."""
    print(
        f"| {width} | {layers} | {beam} | {program} | {found['precision']} "
        f"| {found['sentences_per_s']:,.0f} | {found['ms_per_sentence']:.1f} |",
        flush=True,
    )


def main() -> None:
    """Read the command line and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    jobs = parser.add_subparsers(dest="job", required=True)
    training, search = jobs.add_parser("train"), jobs.add_parser("translate")
    for job in (training, search):
        job.add_argument("--peer-python", required=True, help="of the environment of the others")
        job.add_argument("--tokenizer", required=True)
    training.add_argument("--train", required=True, help="PREFIX of two files")
    training.add_argument("--seconds", type=float, default=30)
    training.add_argument("--dropout", type=float, default=0.3)
    training.add_argument("--widths", type=int, nargs="+", default=sorted(HEADS))
    search.add_argument("--input", required=True)
    search.add_argument("--length", type=int, default=16, help="pieces of every translation")
    search.add_argument("--widths", type=int, nargs="+", default=[256, 512])
    search.add_argument("--layers", type=int, nargs="+", default=[3, 6])
    search.add_argument("--beams", type=int, nargs="+", default=[5, 1])
    options = parser.parse_args()
    {"train": train, "translate": translate}[options.job](options)


if __name__ == "__main__":
    main()
