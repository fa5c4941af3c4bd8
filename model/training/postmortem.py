"""What a step that went wrong was to learn from, written down for whoever looks for the cause.

diverged-step-N.jsonl has one JSON object a line for each pair of the step's batches. Of several
processes each writes those that it had, all but the first to diverged-step-N-rank-R.jsonl.

    line            the pair's number in the training corpus, from 1: the line of two text files. A
                    pair that training has made has the number of the one that it was made from
    batch           which of the step's batches it was in, from 1
    source, target  its texts, decoded from the pieces that the network saw
    source_pieces, target_pieces   how many those are, end of sentence included
    nats_per_token  its loss alone, without dropout; null where that is no finite number
"""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tfm.data.batching import Batch
from tfm.data.errors import DataError
from tfm.data.lines import atomic_writer
from tfm.model.training.run import Run
from tfm.model.training.step import Diverged

NAMED = 5  # lines of the corpus that the message names


def dissect(run: Run, batches: Sequence[Batch], error: Diverged) -> Diverged:
    """Write the pairs of `batches`, and return `error` with a word on which they are and where."""
    step = run.progress.step + 1
    records = list(pair_records(run, batches))
    path = run.directory.diverged(step, rank=run.learner.ranks.rank)
    try:
        with atomic_writer(path) as file:
            file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        place = f"listed in {path}"
    except DataError as why:
        place = f"which could not be listed ({why})"
    suspects = [record for record in records if record["nats_per_token"] is None] or records
    lines = sorted({record["line"] for record in suspects})
    named = ", ".join(f"{line:,}" for line in lines[:NAMED])
    more = f" and {len(lines) - NAMED:,} more" if len(lines) > NAMED else ""
    noun = "line" if len(lines) == 1 else "lines"
    return Diverged(
        f"{error.what} on {noun} {named}{more} of the training corpus, {place}", error.remedy
    )


def pair_records(run: Run, batches: Sequence[Batch]) -> Iterator[dict[str, Any]]:
    """Yield the record of each pair; the network runs on one at a time, as it is."""
    learner, tokenizer = run.learner, run.tokenizer
    lines = run.lines
    learner.model.eval()
    for number, batch in enumerate(batches, start=1):
        for row, index in enumerate(batch.indices.tolist()):
            pair = batch.rows(slice(row, row + 1))
            with torch.no_grad():
                nats = float(learner.losses(pair).nats) / int(pair.target_lengths[0])
            source, target = pair.source[0].tolist(), pair.target_out[0].tolist()
            yield {
                "line": int(lines[index]),
                "batch": number,
                "source": tokenizer.decode_source(source[:-1]),
                "target": tokenizer.decode_target(target[:-1]),
                "source_pieces": len(source),
                "target_pieces": len(target),
                "nats_per_token": nats if math.isfinite(nats) else None,
            }
    learner.model.train()
