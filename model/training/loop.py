"""The training loop: the order of events of a run.

For each step: batches, loss, backward, clip, Adam (all in `train_step`), then log, validate,
checkpoint, and stop if asked to.
"""

import math
import time
from dataclasses import asdict

from tfm.model.checkpoint import save_weights
from tfm.model.memory import give_back_freed_memory
from tfm.model.training.budget import LEAST, describe, foresee_end, keep_time
from tfm.model.training.diversification import translate_corpus
from tfm.model.training.postmortem import dissect
from tfm.model.training.reporting import Reporter, StepReport
from tfm.model.training.run import Run
from tfm.model.training.schedule import (
    MADE_AFTER,
    begins_phase,
    learning_rate,
)
from tfm.model.training.selection import Outcome, finish
from tfm.model.training.signals import Interrupted, StopSignals
from tfm.model.training.state import BatchStream, Sums
from tfm.model.training.step import Diverged, StepResult, train_step
from tfm.model.training.validation import ValidationSet, validate

LOG_EVERY = 10  # steps
TRIM_EVERY = 200  # steps: giving memory back costs about as much as one of them
SEEN = 10  # steps after which it can be said how many fit into a limited time


def train(run: Run, reporter: Reporter) -> Outcome:
    """Train until the last step, or until patience runs out, and choose the final weights.

    Raises:
        Interrupted: after saving, on the first SIGINT, SIGTERM or SIGHUP.
        Diverged: if the loss or the gradient is no finite number, before the weights change.
        CheckpointError: if a checkpoint cannot be written.
    """
    with StopSignals() as signals:
        try:
            return _train(run, reporter, signals)
        except Interrupted:
            run.save()
            raise


def _train(run: Run, reporter: Reporter, signals: StopSignals) -> Outcome:
    settings = run.settings.training
    stream = run.stream()
    if run.progress.step:
        reporter.on_note(run.describe_position(stream))
    reporter.on_start(run.progress.step, run.last_step)
    run.learner.model.train()
    run.progress.finished = False
    run.prepared = run.clock.sitting
    settle(run, reporter, signals)  # if the last sitting ended before that
    while not run.over:
        keep_time(run)
        if run.timetable and run.progress.step == SEEN:
            reporter.on_note(describe(run.timetable, settings))
        if begins_phase(run.next_stretch, settings):
            begin_phase(run, stream, reporter, signals)
        learn(run, stream, reporter)
        if run.progress.step == LEAST and (shortage := foresee_end(run)):
            reporter.on_note(shortage)
        settle(run, reporter, signals)
    if run.valid is not None and run.progress.best is None:
        measure(run, run.valid, reporter, signals)  # fewer steps were asked for than are done
    reporter.on_pause("choosing the final weights")
    return run.learner.ranks.from_first(lambda: finish(run, signals.check, reporter.on_note))


def settle(run: Run, reporter: Reporter, signals: StopSignals) -> None:
    """Do what is due after the step, unless it is done: validate, checkpoint, stop if asked to."""
    progress = run.progress
    if progress.settled:
        return
    backward = run.phase.name == "backward"
    if run.valid is not None and run.event_due("validation") and not backward:
        measure(run, run.valid, reporter, signals)
    progress.settled = True
    if run.event_due("checkpoint"):
        with run.pace.of("checkpoint"):
            run.checkpoint()
    if run.due(TRIM_EVERY):
        give_back_freed_memory()
    signals.check(run.learner.ranks.largest)


def begin_phase(run: Run, stream: BatchStream, reporter: Reporter, signals: StopSignals) -> None:
    """Go over to the next phase: an epoch of its own, and whatever it is to learn from."""
    progress = run.progress
    what = MADE_AFTER.get(run.phase.name)
    if what and (run.timetable is None or run.timetable.translates):
        reporter.on_pause("translating the training corpus")
        with run.pace.of("translation"):
            reporter.on_note(translate_corpus(run, what, signals.check))
        stream.of_epoch = run.corpus_of_epochs(run.settings.training)
    run.learner.restart()
    stream.next_epoch()
    progress.snapshots = []  # a mean with weights of before would be of no use
    progress.validations_without_best = 0


def learn(run: Run, stream: BatchStream, reporter: Reporter) -> None:
    """Take one step and log it."""
    begin = time.perf_counter()
    settings, progress = run.settings.training, run.progress
    step, stretch = progress.step + 1, run.next_stretch
    rate = learning_rate(stretch.after, settings)
    batches = stream.take(settings.accumulate, ranks=run.learner.ranks)
    whole = run.learner.too_large is None
    try:
        result = train_step(
            run.learner, batches, settings, step=step, learning_rate=rate, stretch=stretch
        )
    except Diverged as error:
        raise dissect(run, batches, error) from None
    if whole and run.learner.too_large:
        reporter.on_note(
            f"step {step:,}: out of GPU memory; from here on batches as large are split, which "
            f"takes longer than a smaller training.batch_tokens with a larger training.accumulate"
        )
    progress.step, progress.settled = step, False
    seconds = time.perf_counter() - begin
    progress.seconds += seconds
    progress.since_log.add(result, batches, seconds)
    run.pace.add_step(seconds)
    log(run, result, rate, stream.epochs, reporter)


def log(run: Run, result: StepResult, rate: float, epoch: float, reporter: Reporter) -> None:
    """Report the step; every `LOG_EVERY` steps, write the means since the last time."""
    progress, sums = run.progress, run.progress.since_log
    report = StepReport(
        step=progress.step,
        steps=run.last_step,
        epoch=epoch,
        loss=sums.loss / sums.target_tokens,
        nats_per_token=sums.nats / sums.target_tokens,
        learning_rate=rate,
        gradient_norm=result.gradient_norm,
        tokens_per_s=sums.tokens / sums.seconds,
        padding=sums.padding / sums.positions,
        best=progress.best,
        best_step=progress.best_step,
        seconds_left=run.seconds_left,
        logged=run.due(LOG_EVERY),
    )
    if report.logged:
        run.metrics.add(
            "train",
            report.step,
            loss=report.loss,
            nats_per_token=report.nats_per_token,
            learning_rate=rate,
            # Infinite where fp16 overflowed and the step was left out: JSON has no word for it.
            gradient_norm=report.gradient_norm if math.isfinite(report.gradient_norm) else None,
            tokens_per_s=round(report.tokens_per_s, 1),
            padding=round(report.padding, 4),
            epoch=round(epoch, 3),
            seconds=round(progress.seconds, 3),
        )
        progress.since_log = Sums()
    reporter.on_step(report)


def measure(run: Run, valid: ValidationSet, reporter: Reporter, signals: StopSignals) -> None:
    """Validate, keep the weights if they are the best so far, and draw the learning curve.

    Where there is a moving average, it is what is measured and kept.
    """
    reporter.on_pause("validating")
    begin = time.perf_counter()
    progress = run.progress
    with run.learner.averaged(), run.pace.of("validation"):
        scores, samples = run.learner.ranks.from_first(
            lambda: validate(run.learner, valid, run.tokenizer, run.settings, check=signals.check)
        )
        progress.seconds += time.perf_counter() - begin
        best = scores.better_than(progress.best, run.settings.training.metric)
        if best:
            progress.best, progress.best_step = scores, progress.step
            progress.validations_without_best = 0
            for path in (run.directory.best, run.directory.weights) if run.writes else ():
                save_weights(path, run.learner.model, run.about_weights(scores))
        else:
            progress.validations_without_best += 1
        run.rank(scores)
    run.metrics.add("valid", progress.step, **asdict(scores), seconds=round(progress.seconds, 3))
    for sample in samples:
        run.metrics.add("sample", progress.step, **sample._asdict())
    if run.writes:
        run.draw()
    reporter.on_validation(progress.step, scores, best=best)
    if samples:
        reporter.on_samples(progress.step, samples)
