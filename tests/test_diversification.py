"""Data diversification: what is made, from what, who learns from it, and that it cannot be lost."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tfm.data.corpus import Pair, read_pairs
from tfm.data.errors import CheckpointError, SettingsError
from tfm.data.tokenizer import EOS
from tfm.model.checkpoint import weights_of
from tfm.model.search.beam import beam_search
from tfm.model.settings import Settings
from tfm.model.training import diversification
from tfm.model.training.loop import train
from tfm.model.training.recipe import prepare
from tfm.model.training.reporting import Silence
from tfm.model.training.run import Run
from tfm.model.training.signals import Interrupted
from tfm.model.training.state import Progress

TrainSmall = Callable[..., Run]
FIRST = 7
OPTIONS: dict[str, Any] = {"both_directions_steps": FIRST, "diversify": True, "ema_decay": 0.5}


def made(directory: Path) -> list[Pair]:
    path = str(directory / "diversified.tsv")
    return list(read_pairs(path, source="en", target="de", split="train"))


def given() -> list[Pair]:
    return list(read_pairs("builtin:60", source="en", target="de", split="train"))


def test_the_averaged_network_of_the_first_phase_translates_all_pairs_both_ways(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    """Sources with their translations, then translations of the targets with their targets."""
    averages: dict[str, torch.Tensor] = {}

    def record(run: Run) -> None:
        if run.progress.step == FIRST:
            assert run.learner.average is not None
            averages.update({n: w.clone() for n, w in run.learner.average.weights.items()})

    run = train_small(tmp_path, after=record, **OPTIONS)
    model, tokenizer = run.learner.model.eval(), run.tokenizer
    for name, weight in weights_of(model).items():
        weight.copy_(averages[name])

    def translate(text: str) -> str:
        sources = [[*tokenizer.encode_source(text), EOS]]
        forbidden = tokenizer.forbidden_ids
        [[best]] = beam_search(model, sources, run.settings.decoding, forbidden=forbidden)
        return tokenizer.decode_target(best.tokens)

    expected = [
        *(Pair(pair.source, translate(pair.source)) for pair in given()),
        *(Pair(translate(pair.target), pair.target) for pair in given()),
    ]
    assert made(tmp_path) == expected
    assert len({pair.target for pair in expected[:60]}) > 3, "not one for all"


def test_the_second_phase_learns_from_every_pair_given_and_made(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    run = train_small(tmp_path, **OPTIONS)
    decode = run.tokenizer.decode_source
    stream = replace(run, progress=Progress(step=FIRST + 1)).stream()
    learned = [
        (decode(source), decode(target))
        for batch in stream.take(len(stream.epoch_order))
        for source, target in zip(batch.source.tolist(), batch.target_out.tolist(), strict=True)
    ]
    filled = [tuple(pair) for pair in [*given(), *made(tmp_path)] if all(pair)]
    assert sorted(learned) == sorted(filled)


@pytest.mark.parametrize("first", [3, 4, 7, 9], ids=lambda n: f"after step {n}")
def test_resuming_is_exact(assert_resume_is_exact: Callable[..., None], first: int) -> None:
    """Stops come after steps 3 and 9, a crash after 7, checkpoints at 5, 10 and 12."""
    assert_resume_is_exact(**OPTIONS | {"both_directions_steps": first})


def test_resuming_is_exact_with_other_pieces_in_each_epoch(
    assert_resume_is_exact: Callable[..., None],
) -> None:
    assert_resume_is_exact(kind="bpe", subword_dropout=0.1, **OPTIONS)


def test_a_stop_while_it_translates_leaves_all_as_it_was(
    train_small: TrainSmall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_small(tmp_path / "whole", **OPTIONS)

    def stop(run: Run, asked: list[list[int]], check: Callable[[], None]) -> None:
        signal.raise_signal(signal.SIGTERM)
        check()
        raise AssertionError("it goes on")

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(diversification, "search", stop)
        train_small(tmp_path / "parts", **OPTIONS)
    assert not (tmp_path / "parts" / "diversified.tsv").exists()
    parts = train_small(tmp_path / "parts", **OPTIONS)
    assert made(tmp_path / "parts") == made(tmp_path / "whole")
    one, other = (weights_of(run.learner.model) for run in (whole, parts))
    assert all(one[name].equal(other[name]) for name in one)


def test_a_run_whose_pairs_are_lost_or_changed_does_not_go_on_with_others(
    train_small: TrainSmall, small_order: Callable[..., Any], tmp_path: Path
) -> None:
    train_small(tmp_path, **OPTIONS)
    path = tmp_path / "diversified.tsv"
    text = path.read_text()

    def refused(message: str) -> None:
        more = small_order(tmp_path, steps=14, **OPTIONS)
        with pytest.raises(CheckpointError, match=message), prepare(more, Silence()):
            pass

    path.write_text(text + "one more\teine mehr\n")
    refused(r"diversified\.tsv: is not what training has learned from so far; put back")
    path.unlink()
    refused(r"diversified\.tsv: .*no such file or directory; put back")
    path.write_text(text)
    assert train_small(tmp_path, steps=14, **OPTIONS).progress.step == 14


def test_a_run_goes_on_with_it_or_without_as_it_began(
    train_small: TrainSmall, small_order: Callable[..., Any], tmp_path: Path
) -> None:
    train_small(tmp_path, **OPTIONS)
    order = small_order(tmp_path, **OPTIONS | {"diversify": False})
    with pytest.raises(CheckpointError, match="diversify"), prepare(order, Silence()):
        pass


def test_without_a_first_phase_nobody_could_translate() -> None:
    with pytest.raises(SettingsError, match="`diversify` must be false without `both_direct"):
        Settings.read(None, ["training.diversify=true"])


def test_a_pair_that_cannot_be_learned_from_is_traced_to_the_line_it_was_made_from(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    run = train_small(tmp_path, **OPTIONS)
    assert run.added is not None
    decode, lines = run.tokenizer.decode_source, run.lines
    both = run.corpus.followed_by(run.added)
    assert len(lines) == len(both)
    pairs = given()
    for i, line in enumerate(lines.tolist()):
        source, target = (decode(s.sentence(i).tolist()) for s in (both.source, both.target))
        assert source == pairs[line - 1].source or target == pairs[line - 1].target


def test_what_was_made_and_where_it_is_is_told(
    small_order: Callable[..., Any], tmp_path: Path
) -> None:
    heard: list[str] = []

    class Listen(Silence):
        def on_note(self, text: str) -> None:
            heard.append(text)

    with prepare(small_order(tmp_path, **OPTIONS), Listen()) as run:
        train(run, Listen())
    assert "then the network translates the training corpus both ways" in " ".join(heard)
    [told] = [line for line in heard if line.startswith("the training corpus is translated")]
    assert f"pairs more, in {tmp_path / 'diversified.tsv'}" in told
