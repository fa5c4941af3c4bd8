"""The end of a run: the better of its best weights and the mean of its last ones becomes the model.

Averaging the last checkpoints takes out the noise of the last steps (paper, section 6.1). Where
there is a validation set both candidates are measured on it. With a moving average of the weights
the best ones are the best average, and without a validation set it is chosen.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch

from tfm.data.errors import CheckpointError
from tfm.model.checkpoint import load_weights, save_weights, weights_of
from tfm.model.training.run import Run
from tfm.model.training.validation import ValidationScores, ValidationSet, validate
from tfm.model.transformer import Transformer


class Outcome(NamedTuple):
    """What a finished run left in model.safetensors."""

    chosen: str  # "best", "average", "moving average" or "last"
    scores: dict[str, ValidationScores]  # of each candidate; empty without a validation set
    best_step: int | None  # of the candidate "best"
    early: bool  # patience ended it before the last step


def finish(run: Run, check: Callable[[], None]) -> Outcome:
    """Write the chosen weights to model.safetensors, and mark the run as finished.

    What `check` raises, before each batch of validation, leaves all to be done again.
    """
    progress, model = run.progress, run.learner.model
    if run.settings.training.average_last and progress.step not in progress.snapshots:
        run.checkpoint()  # patience ended the run between two checkpoints
    run.trim_snapshots()
    trained = {name: weight.clone() for name, weight in weights_of(model).items()}
    try:
        outcome = choose(run, check)
        chosen_scores = outcome.scores.get(outcome.chosen)
        save_weights(run.directory.weights, model, run.about_weights(chosen_scores))
    finally:
        for name, weight in weights_of(model).items():
            weight.copy_(trained[name])  # training goes on from these, whatever was chosen
    write_final_record(run, outcome)
    run.draw()
    progress.finished = True
    run.save()
    run.directory.drop_snapshots(keep=progress.snapshots)
    return outcome


def choose(run: Run, check: Callable[[], None]) -> Outcome:
    """Leave the final weights in the model and say which they are."""
    early = run.progress.step < run.settings.training.steps
    paths = [run.directory.snapshot(step) for step in run.progress.snapshots]
    if run.valid is not None:
        return _choose_by_score(run, run.valid, paths, check, early=early)
    if run.learner.average:
        run.learner.average.fill()
        return Outcome("moving average", {}, None, early)
    if len(paths) > 1:
        average_weights(run.learner.model, paths)
        return Outcome("average", {}, None, early)
    return Outcome("last", {}, None, early)


def _choose_by_score(
    run: Run,
    valid: ValidationSet,
    snapshots: Sequence[Path],
    check: Callable[[], None],
    *,
    early: bool,
) -> Outcome:
    model = run.learner.model
    # The file tells its own step and scores: after a kill it may be younger than the state.
    best = load_weights(run.directory.best, model)
    scores = {"best": ValidationScores(**best["scores"])}
    chosen = "best"
    if len(snapshots) > 1:
        average_weights(model, snapshots)
        scores["average"] = validate(run.learner, valid, run.tokenizer, run.settings, check=check)
        if scores["average"].better_than(scores["best"], run.settings.training.metric):
            chosen = "average"
        else:
            load_weights(run.directory.best, model)
    return Outcome(chosen, scores, best["step"], early)


def write_final_record(run: Run, outcome: Outcome) -> None:
    """Add what was chosen, and from what, to the metrics."""
    run.metrics.add(
        "final",
        run.progress.step,
        chosen=outcome.chosen,
        best_step=outcome.best_step,
        candidates={name: asdict(scores) for name, scores in outcome.scores.items()},
    )


def average_weights(model: Transformer, paths: Sequence[Path]) -> None:
    """Fill `model` with the mean of the weights in `paths`, summed in fp64.

    Raises:
        CheckpointError: if one of them is missing, damaged or does not fit.
    """
    weights = weights_of(model)
    sums = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in weights.items()}
    for path in paths:
        try:
            load_weights(path, model)
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}; or finish without the mean: --set training.average_last=0"
            ) from None
        for name, weight in weights.items():
            sums[name] += weight
    for name, weight in weights.items():
        weight.copy_(sums[name] / len(paths))
