"""A schedule that ends on time: `tfm train --time 30m`.

How many steps fit into a length of time is not known before they are taken. So the schedule of the
recipe, of N steps (`training.steps`), is followed by its share, which goes from 0 to 1, and each
step covers as much of it as is needed for the last step that fits to reach 1:

    share(t) = share(t0) + (1 - share(t0)) (t - t0) / (last - t0)        after step t > t0

`last` is decided after the step t0 by the pace seen so far, after every step at first, then again
and again. The learning rate of step t is the recipe's at step share(t) N, validations and
checkpoints come at the recipe's shares, and the moving average forgets what N steps would. What is
decided is part of the state: a run that is stopped goes on by it. Of several processes the first
one decides. Phases begin at the recipe's shares too. The translations that they end with are inside
the time, unless they would take more than half of it: then there are none.
"""

import math
from dataclasses import replace

from tfm.model.settings import TrainingSettings
from tfm.model.training.rehearsal import time_translation, time_validation
from tfm.model.training.run import Run
from tfm.model.training.schedule import translations_due
from tfm.model.training.timetable import Timetable

MARGIN = 0.01  # of the time stays free
CAUTION = 1.1  # a validation may take longer than the last one did: the very last ones count
VALIDATING, SAVING = 0.2, 0.1  # shares of the time that validations and checkpoints may take
TRANSLATING = 0.5  # the share that all translations of the training corpus together may take
LEAST = 3  # steps, however short the time is: the first one is slow and says nothing


def keep_time(run: Run) -> None:
    """Decide anew, if it is time to, how many steps are to come. All ranks call it."""
    training, step = run.settings.training, run.progress.step
    if not training.time:
        return
    timetable = run.progress.timetable
    if timetable is None or timetable.stale(step):
        run.progress.timetable = run.learner.ranks.from_first(lambda: look_ahead(run))


def look_ahead(run: Run) -> Timetable:
    """Return the timetable from the present step on."""
    if run.timetable:
        return decide(run, run.timetable)
    validation = 0.0 if run.valid is None else time_validation(run, run.valid)
    translates = translations_due(0, run.settings.training) > 0
    return begin(run, validation, time_translation(run) if translates else 0.0)


def begin(run: Run, validation: float, translation: float) -> Timetable:
    """Return the timetable before any step was seen: that of the recipe.

    Args:
        validation: about how many seconds one takes.
        translation: about how many the translation of the training corpus takes, if it is due.
    """
    training = run.settings.training
    most = TRANSLATING * training.time
    return Timetable(
        step=run.progress.step,
        share=0.0,
        last=run.progress.step + max(training.steps, LEAST),
        seconds=training.time,
        validate_every=thinned(training.validate_every, validation, VALIDATING, training),
        checkpoint_every=thinned(training.checkpoint_every, 0.0, SAVING, training),
        took_validation=validation,
        took_translation=translation,
        translates=translations_due(0, training) * translation <= most,
    )


def decide(run: Run, before: Timetable) -> Timetable:
    """Return the timetable by the pace of late: as many steps as fit beside all that is due."""
    training, pace, step = run.settings.training, run.pace, run.progress.step
    took_step = pace.step or before.took_step
    validation = pace.validation or before.took_validation
    checkpoint = pace.checkpoint or before.took_checkpoint
    after = replace(
        before,
        step=step,
        share=before.at(step),
        took_step=took_step,
        took_validation=validation,
        took_checkpoint=checkpoint,
        took_translation=pace.translation or before.took_translation,
        validate_every=thinned(training.validate_every, validation, VALIDATING, training),
        checkpoint_every=thinned(training.checkpoint_every, checkpoint, SAVING, training),
    )
    left = training.time * (1 - MARGIN) - run.clock.elapsed - reserve(run, after)
    steps = max(int(left / took_step), 1) if took_step else before.last - step
    return replace(after, last=step + max(steps, LEAST - step))


def reserve(run: Run, timetable: Timetable) -> float:
    """Return the seconds that all but the steps takes from here to the very end."""
    validations = validations_still_due(timetable, run.settings.training) + 1
    if run.settings.training.average_last > 1:
        validations += 1  # of the mean of the last checkpoints
    checkpoints = still_due(timetable.share, timetable.checkpoint_every) + 3  # state and weights
    translations = translations_to_come(timetable, run.settings.training)
    return (
        CAUTION * validations * timetable.took_validation
        + CAUTION * translations * timetable.took_translation
        + checkpoints * timetable.took_checkpoint
    )


def validations_still_due(timetable: Timetable, training: TrainingSettings) -> int:
    """Count the validations from here to the end; the way back is not measured."""
    every = timetable.validate_every
    begin = training.both_directions_steps / training.steps
    end = begin + training.backward_steps / training.steps
    after = [still_due(max(share, timetable.share), every) for share in (0.0, begin, end)]
    return after[0] - after[1] + after[2]


def translations_to_come(timetable: Timetable, training: TrainingSettings) -> int:
    """Count how often the training corpus is still translated."""
    due = translations_due(timetable.share * training.steps, training)
    return due if timetable.translates else 0


def still_due(share: float, every: float) -> int:
    """Count the multiples of `every` above `share` and below 1."""
    return max(0, math.ceil(1 / every - 1e-9) - 1 - math.floor(share / every + 1e-9))


def thinned(every: int, seconds: float, most: float, training: TrainingSettings) -> float:
    """Return the share of the schedule between two events that take `seconds` each.

    It is the recipe's, or a multiple of it, so that they take at most the share `most` of the time.
    """
    interval = min(every / training.steps, 1.0)
    return interval * max(1, math.ceil(seconds / interval / (most * training.time)))


def foresee_end(run: Run) -> str | None:
    """Return what to say, once `LEAST` steps are done, of a time that will not do."""
    if run.timetable is None:
        return None
    rest = reserve(run, run.timetable)
    translates = translations_to_come(run.timetable, run.settings.training) > 0
    what = "validate, translate the corpus and save" if translates else "validate and save"
    if run.clock.elapsed + rest <= run.settings.training.time:
        return None
    return (
        f"--time: {run.settings.training.time:g} s is too short; {run.clock.elapsed:,.1f} s have "
        f"gone, and to {what} takes about {rest:,.1f} s more"
    )


def describe_lateness(run: Run) -> str | None:
    """Return what kept a run from ending on time; None if it did, to a hundredth."""
    seconds, elapsed = run.settings.training.time, run.clock.elapsed
    if not seconds or elapsed <= seconds * (1 + MARGIN):
        return None
    pace = run.pace
    parts = f"{run.prepared:,.1f} s to get ready"
    if run.valid:
        parts += f", {pace.validation:,.1f} s for a validation"
    if pace.translation:
        parts += f", {pace.translation:,.1f} s to translate the corpus"
    return (
        f"--time: {seconds:g} s was too short: it took {elapsed:,.1f} s, of which {parts}; at "
        f"least {LEAST} steps are taken, and the model is validated and saved"
    )


def describe(timetable: Timetable, settings: TrainingSettings) -> str:
    """Return how much of the recipe fits."""
    each = (1 - timetable.share) * settings.steps / max(timetable.last - timetable.step, 1)
    validation, translation = timetable.took_validation, timetable.took_translation
    hint = "; training.validate_sentences can make validations shorter"
    takes = f"{translation:,.0f} s"
    translating = f", to translate the corpus about {takes}"
    if not timetable.translates:
        translating = f"; there is no time to translate the corpus, which takes about {takes}"
    due = translations_due(timetable.share * settings.steps, settings)
    return (
        f"--time: about {timetable.last:,} steps fit, each for {each:,.1f} of the recipe's "
        f"{settings.steps:,}; a validation takes about {validation:.1f} s"
        + (translating if due else "")
        + (hint if validation > VALIDATING * timetable.seconds else "")
    )
