"""`tfm demo` does the whole job and ends with the score that scripts may rely on."""

import importlib
import re
import shutil
import socket
from pathlib import Path

import pytest
import sacrebleu

from tfm.data.corpus import read_pairs

module = importlib.import_module("tfm.cli.demo")


def test_the_demo_does_every_step_and_ends_with_its_bleu(
    tiny_model_directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Training is replaced by a small model; the slow test of the README runs the real thing."""
    asked = {}

    def train(*, output: Path, **arguments: str) -> None:
        asked.update(arguments)
        shutil.copytree(tiny_model_directory, output)

    def connect(*_: object) -> None:
        raise AssertionError("the demo went to the network")

    monkeypatch.setattr(module, "train", train)
    monkeypatch.setattr(socket.socket, "connect", connect)
    directory = tmp_path / "demo"
    machine = {"device": "cpu", "precision": "fp32", "attention": "math"}
    module.demo(directory, **machine)

    stdout, stderr = capsys.readouterr()
    assert asked == {"config": "demo", "train": "builtin", "valid": "builtin"} | machine
    commands = re.findall(r"^   \$ tfm ([\w-]+) .*--attention math", stderr, re.MULTILINE)
    assert commands == ["train", "translate", "eval", "inspect-attention"]
    assert "math: the formula" in stderr and "kernel" not in stderr  # what runs it obeyed
    assert re.search(r"Done in \d+ min \d+ s", stderr)

    pairs = list(read_pairs("builtin", source="en", target="de", split="test"))
    assert stdout.startswith(f"{pairs[0].source}\n    ")
    hypotheses = (directory / "test.de").read_text("utf-8").splitlines()
    bleu = sacrebleu.corpus_bleu(hypotheses, [[pair.target for pair in pairs]]).score
    assert stdout.splitlines()[-1] == f"BLEU = {bleu:.1f}"
    assert (directory / "attention/cross.svg").exists()
