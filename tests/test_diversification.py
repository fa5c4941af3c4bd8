"""Data diversification: what is made, from what, who learns from it, and that it cannot be lost."""

import signal
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch

from tfm.data.batching import EncodedCorpus
from tfm.data.corpus import Pair, read_pairs
from tfm.data.errors import CheckpointError, SettingsError
from tfm.data.tokenizer import EOS
from tfm.model.checkpoint import weights_of
from tfm.model.search.beam import beam_search
from tfm.model.settings import PHASES, Settings
from tfm.model.training import diversification
from tfm.model.training.loop import train
from tfm.model.training.recipe import prepare
from tfm.model.training.reporting import Silence
from tfm.model.training.run import Run
from tfm.model.training.signals import Interrupted
from tfm.model.training.state import Progress

TrainSmall = Callable[..., Run]
OPTIONS: dict[str, Any] = {"backward_steps": 3, "forward_steps": 4, "ema_decay": 0.5}
FILES = ("back-translations.tsv", "forward-translations.tsv")


def made(directory: Path) -> list[list[Pair]]:
    """Read what training has made: back-translations, forward translations."""
    paths = [str(directory / name) for name in FILES]
    return [list(read_pairs(path, source="en", target="de", split="train")) for path in paths]


def given() -> list[Pair]:
    return list(read_pairs("builtin:60", source="en", target="de", split="train"))


def test_the_averaged_network_of_each_phase_translates_the_corpus(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    """Translations of the targets with their targets; sources with their translations."""
    averages: dict[int, dict[str, torch.Tensor]] = {}

    def record(run: Run) -> None:
        assert run.learner.average is not None
        weights = run.learner.average.weights
        averages[run.progress.step] = {name: weight.clone() for name, weight in weights.items()}

    run = train_small(tmp_path, after=record, **OPTIONS)
    model, tokenizer = run.learner.model.eval(), run.tokenizer

    def translate(step: int, text: str) -> str:
        for name, weight in weights_of(model).items():
            weight.copy_(averages[step][name])
        sources = [[*tokenizer.encode_source(text), EOS]]
        forbidden = tokenizer.forbidden_ids
        [[best]] = beam_search(model, sources, run.settings.decoding, forbidden=forbidden)
        return tokenizer.decode_target(best.tokens)

    back, forward = made(tmp_path)
    assert back == [Pair(translate(3, pair.target), pair.target) for pair in given()]
    assert forward == [Pair(pair.source, translate(7, pair.source)) for pair in given()]
    assert len({pair.target for pair in forward}) > 3, "not one for all"


def test_each_phase_learns_from_every_pair_given_and_made_before(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    learned: dict[int, list[tuple[str, str]]] = {}

    def record(run: Run) -> None:
        stream = replace(run, progress=Progress(step=run.progress.step)).stream()
        decode = run.tokenizer.decode_source
        learned[run.progress.step] = sorted(
            (decode(source), decode(target))
            for batch in stream.take(len(stream.epoch_order))
            for source, target in zip(batch.source.tolist(), batch.target_out.tolist(), strict=True)
        )

    train_small(tmp_path, after=record, **OPTIONS)
    back, forward = made(tmp_path)
    backward = [Pair(*pair[::-1]) for pair in given()]
    for step, pairs in (
        (3, backward),
        (4, [*given(), *back]),
        (7, [*given(), *back]),
        (8, [*given(), *back, *forward]),
        (12, [*given(), *back, *forward]),
    ):
        assert learned[step] == sorted(tuple(pair) for pair in pairs if all(pair))


def test_one_of_the_two_phases_may_be_left_out(train_small: TrainSmall, tmp_path: Path) -> None:
    for key, name in (("backward_steps", FILES[0]), ("forward_steps", FILES[1])):
        run = train_small(tmp_path / key, **{key: 5})
        assert [path.name for path in (tmp_path / key).glob("*.tsv")] == [name]
        assert list(run.made) == [name.removesuffix(".tsv")]


def test_while_the_way_back_is_learned_nothing_is_validated(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    run = train_small(tmp_path, validate_every=1, **OPTIONS)
    assert [step for step, _ in run.metrics.series("valid", "bleu")] == list(range(4, 13))


def test_a_network_for_the_way_back_is_never_the_model_of_the_run(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    """Without a validation set each checkpoint becomes the model, for whoever stops the run."""
    there: dict[int, bool] = {}

    def look(run: Run) -> None:
        there[run.progress.step] = run.directory.weights.exists()

    train_small(tmp_path, after=look, valid=False, checkpoint_every=1, **OPTIONS)
    assert there == {step: step > 4 for step in there}, "what a step left is seen after the next"
    assert set(there) == set(range(1, 13))


@pytest.mark.parametrize("phases", [(0, 3, 4), (0, 4, 5), (0, 7, 2), (0, 9, 0), (2, 2, 5)])
def test_resuming_is_exact(
    assert_resume_is_exact: Callable[..., None], phases: tuple[int, int, int]
) -> None:
    """Stops come after steps 3 and 9, a crash after 7, checkpoints at 5, 10 and 12."""
    assert_resume_is_exact(**OPTIONS | dict(zip(PHASES, phases, strict=True)))


def test_resuming_is_exact_with_other_pieces_in_each_epoch(
    assert_resume_is_exact: Callable[..., None],
) -> None:
    assert_resume_is_exact(kind="bpe", subword_dropout=0.1, **OPTIONS)


def test_a_stop_while_it_translates_leaves_all_as_it_was(
    train_small: TrainSmall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_small(tmp_path / "whole", **OPTIONS)

    def stop(run: Run, asked: object, settings: object, check: Callable[[], None]) -> None:
        signal.raise_signal(signal.SIGTERM)
        check()
        raise AssertionError("it goes on")

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(diversification, "search", stop)
        train_small(tmp_path / "parts", **OPTIONS)
    assert not list((tmp_path / "parts").glob("*.tsv"))
    parts = train_small(tmp_path / "parts", **OPTIONS)
    assert made(tmp_path / "parts") == made(tmp_path / "whole")
    one, other = (weights_of(run.learner.model) for run in (whole, parts))
    assert all(one[name].equal(other[name]) for name in one)


def test_a_run_whose_pairs_are_lost_or_changed_does_not_go_on_with_others(
    train_small: TrainSmall, small_order: Callable[..., Any], tmp_path: Path
) -> None:
    train_small(tmp_path, **OPTIONS)

    def refused(message: str) -> None:
        more = small_order(tmp_path, steps=14, **OPTIONS)
        with pytest.raises(CheckpointError, match=message), prepare(more, Silence()):
            pass

    for path in (tmp_path / name for name in FILES):
        text = path.read_text()
        path.write_text(text + "one more\teine mehr\n")
        refused(rf"{path.name}: is not what training has learned from so far; put back")
        path.unlink()
        refused(rf"{path.name}: .*no such file or directory; put back")
        path.write_text(text)
    assert train_small(tmp_path, steps=14, **OPTIONS).progress.step == 14


@pytest.mark.parametrize("key", ["backward_steps", "forward_steps"])
def test_a_run_goes_on_with_the_same_phases_only(
    train_small: TrainSmall, small_order: Callable[..., Any], tmp_path: Path, key: str
) -> None:
    train_small(tmp_path, **OPTIONS)
    order = small_order(tmp_path, **OPTIONS | {key: 2})
    with pytest.raises(CheckpointError, match=key), prepare(order, Silence()):
        pass


def test_the_phases_leave_steps_for_the_last_one() -> None:
    message = r"`forward_steps` must be below `steps` \(9\), with the phases before it, but is 5"
    with pytest.raises(SettingsError, match=message):
        sets = ["steps=9", "backward_steps=4", "forward_steps=5"]
        Settings.read(None, [f"training.{setting}" for setting in sets])


def test_separate_vocabularies_do_for_the_way_forward_only(
    train_small: TrainSmall, small_order: Callable[..., Any], tmp_path: Path
) -> None:
    order = small_order(tmp_path / "back", separate=True, backward_steps=3)
    message = "backward_steps.*one vocabulary.*separate = false"
    with pytest.raises(SettingsError, match=message), prepare(order, Silence()):
        pass
    assert train_small(tmp_path / "forth", separate=True, forward_steps=3).made


def test_a_pair_that_cannot_be_learned_from_is_traced_to_the_line_it_was_made_from(
    train_small: TrainSmall, tmp_path: Path
) -> None:
    run = train_small(tmp_path, **OPTIONS)
    decode, lines, pairs = run.tokenizer.decode_source, run.lines.tolist(), given()
    all_pairs = reduce(EncodedCorpus.followed_by, run.made.values(), run.corpus)
    assert len(lines) == len(all_pairs) > 120
    for i, line in enumerate(lines):
        sides = (all_pairs.source, all_pairs.target)
        source, target = (decode(side.sentence(i).tolist()) for side in sides)
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
    assert "3 steps of de to en; then the targets are translated back, to learn from" in str(heard)
    told = [line for line in heard if line.startswith("the training corpus is translated")]
    assert [line.rpartition(" ")[2] for line in told] == [str(tmp_path / name) for name in FILES]
