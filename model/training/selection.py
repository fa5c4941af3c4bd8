"""The end of a run: the better of its best weights and the mean of its last ones becomes the model.

Averaging the last checkpoints takes out the noise of the last steps (paper, section 6.1). Where
there is a validation set both candidates are measured on it. With a moving average of the weights
the best ones are the best average, and without a validation set it is chosen.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tfm.data.errors import CheckpointError
from tfm.model.checkpoint import require_fitting, save_weights, weights_of
from tfm.model.tensor_file import Stored, read_tensors
from tfm.model.training.run import Run
from tfm.model.training.validation import ValidationScores, ValidationSet, validate
from tfm.model.transformer import Transformer


class Outcome(NamedTuple):
    """What a finished run left in model.safetensors."""

    chosen: str  # "best", "average", "moving average" or "last"
    scores: dict[str, ValidationScores]  # of each candidate; empty without a validation set
    best_step: int | None  # of the candidate "best"
    averaged: int  # how many checkpoints the candidate "average" is the mean of
    early: bool  # patience ended it before the last step


def finish(run: Run, check: Callable[[], None], tell: Callable[[str], None]) -> Outcome:
    """Write the chosen weights to model.safetensors, and mark the run as finished.

    What `check` raises, before each batch of validation, leaves all to be done again. Weights that
    are lost or damaged are no candidates; `tell` hears of each.
    """
    progress, model = run.progress, run.learner.model
    if run.snapshots_kept and progress.step not in progress.snapshots:
        run.checkpoint()  # patience ended the run between two checkpoints
    run.trim_snapshots()
    trained = {name: weight.clone() for name, weight in weights_of(model).items()}
    try:
        outcome = choose(run, check, tell)
        chosen_scores = outcome.scores.get(outcome.chosen)
        save_weights(run.directory.weights, model, run.about_weights(chosen_scores))
    finally:
        put_back(model, trained)  # training goes on from these, whatever was chosen
    write_final_record(run, outcome)
    run.draw()
    progress.finished = True
    run.save()
    run.drop_weights()
    return outcome


def put_back(model: Transformer, weights: Mapping[str, Tensor]) -> None:
    """Fill `model` with `weights`."""
    for name, weight in weights_of(model).items():
        weight.copy_(weights[name])


def choose(run: Run, check: Callable[[], None], tell: Callable[[str], None]) -> Outcome:
    """Leave the final weights in the model and say which they are."""
    early = run.progress.step < run.last_step
    if run.valid is not None:
        return _choose_by_score(run, run.valid, check, tell, early=early)
    if run.learner.average:
        run.learner.average.fill()
        return Outcome("moving average", {}, None, 0, early)
    averaged = average_snapshots(run, tell)
    return Outcome("average" if averaged else "last", {}, None, averaged, early)


def _choose_by_score(
    run: Run,
    valid: ValidationSet,
    check: Callable[[], None],
    tell: Callable[[str], None],
    *,
    early: bool,
) -> Outcome:
    def measure() -> ValidationScores:
        return validate(run.learner, valid, run.tokenizer, run.settings, check=check).scores

    scores: dict[str, ValidationScores] = {}
    # The file tells its own step and scores: after a kill it may be younger than the state.
    if best := best_weights(run, tell):
        scores["best"] = ValidationScores(**best.header["scores"])
    if averaged := average_snapshots(run, tell):
        scores["average"] = measure()
    if not scores:
        if run.learner.average:
            run.learner.average.fill()
        scores["moving average" if run.learner.average else "last"] = measure()
    chosen = next(iter(scores))
    if best and averaged:
        average = scores["average"].better_than(scores["best"], run.settings.training.metric)
        chosen = "average" if average else "best"
    if best and chosen == "best":
        put_back(run.learner.model, best.tensors)
    return Outcome(chosen, scores, best.header["step"] if best else None, averaged, early)


def best_weights(run: Run, tell: Callable[[str], None]) -> Stored | None:
    """Read the best weights that can be read, if any can."""
    directory = run.directory
    paths = [directory.best, *(directory.ranked(ranked.step) for ranked in run.progress.ranking)]
    return next((stored for path in paths if (stored := readable(run, path, tell))), None)


def average_snapshots(run: Run, tell: Callable[[str], None]) -> int:
    """Fill the model with the mean of the last `average_last` snapshots, summed in fp64.

    Returns:
        Of how many it is: those that can be read. If they are fewer than two the model is left as
        it is, and 0 returned.
    """
    count = run.settings.training.average_last
    steps = run.progress.snapshots[-count:] if count > 1 else []
    weights, averaged = weights_of(run.learner.model), 0
    sums = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in weights.items()}
    for step in steps:
        if stored := readable(run, run.directory.snapshot(step), tell):
            averaged += 1
            for name, total in sums.items():
                total += stored.tensors[name].to(total.device)
    if averaged < 2:
        return 0
    for name, weight in weights.items():
        weight.copy_(sums[name] / averaged)
    return averaged


def readable(run: Run, path: Path, tell: Callable[[str], None]) -> Stored | None:
    """Read weights of the run's model; say so and return None if that is not possible."""
    try:
        stored = read_tensors(path)
        require_fitting(run.learner.model, stored.tensors, stored.header, path=path)
    except CheckpointError as error:
        tell(f"{error}; the final weights are chosen without it")
        return None
    return stored


def write_final_record(run: Run, outcome: Outcome) -> None:
    """Add what was chosen, and from what, to the metrics."""
    run.metrics.add(
        "final",
        run.progress.step,
        chosen=outcome.chosen,
        best_step=outcome.best_step,
        candidates={name: asdict(scores) for name, scores in outcome.scores.items()},
    )
