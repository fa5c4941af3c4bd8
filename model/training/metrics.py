"""metrics.jsonl: one JSON object a line, in the order in which training happened.

    kind "train"   loss, nats_per_token, learning_rate, gradient_norm, tokens_per_s, padding, epoch,
                   seconds
    kind "valid"   loss, nats_per_token, bleu, bleu_signature, bleu_search, seconds
    kind "sample"  source, reference, translation: of one sentence that the validation translated
    kind "final"   chosen, best_step, candidates: the weights that model.safetensors holds, the step
                   of the best validation, and the scores of each candidate

`loss` is per target token and includes label smoothing, `nats_per_token` does not; tokens_per_s
counts source and target without padding; padding is the share of positions that hold no token;
epoch is how often all pairs were seen, with a fraction; seconds are spent training, all sittings
together.
"""

import json
from pathlib import Path
from typing import Any

from tfm.data.lines import atomic_writer, writing
from tfm.model.training.board import Board

Record = dict[str, Any]


class Metrics:
    """The records of a run, in memory for the learning curve and on disk.

    Args:
        path: where the file is; None if another process writes it.
        board: what shows the same to TensorBoard, if anything.
    """

    def __init__(self, path: Path | None, board: Board | None = None) -> None:
        self.path, self.board = path, board
        self.records: list[Record] = []

    def begin(self) -> None:
        """Start an empty file."""
        self.records = []
        self._rewrite()

    def resume(self, step: int, *, settled: bool, finished: bool) -> None:
        """Keep what happened up to the checkpoint at `step`: the rest will happen again.

        Args:
            settled: whether a validation due after `step` is part of the checkpoint.
            finished: whether the choice of the final weights is.
        """
        if self.path is None:
            return
        done = {"valid": settled, "sample": settled, "final": finished}
        lines = self.path.read_bytes().split(b"\n") if self.path.exists() else []
        records = [record for line in lines if (record := _parse(line)) is not None]
        self.records = [
            record
            for record in records
            if record["step"] < step or (record["step"] == step and done.get(record["kind"], True))
        ]
        self._rewrite()

    def add(self, kind: str, step: int, **values: Any) -> None:
        """Append a record.

        Raises:
            DataError: if it cannot be written.
        """
        record = {"kind": kind, "step": step, **values}
        self.records.append(record)
        if self.path is None:
            return
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        if self.board:
            self.board.add(record)

    def close(self) -> None:
        """Close what stays open while a run goes on."""
        if self.board:
            self.board.close()

    def series(self, kind: str, key: str) -> list[tuple[int, float]]:
        """Return the (step, value) points of one quantity."""
        return [
            (r["step"], r[key])
            for r in self.records
            if r["kind"] == kind and isinstance(r.get(key), int | float)
        ]

    def _rewrite(self) -> None:
        if self.path is None:
            return
        with atomic_writer(self.path) as file:
            file.writelines(json.dumps(record) + "\n" for record in self.records)
        if self.board:
            self.board.begin(self.records)


def _parse(line: bytes) -> Record | None:
    """Return the record of a line; None for one that a crash has cut short or damaged."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # no JSON, no UTF-8, or not what Python's parser can hold
        return None
    ours = isinstance(record, dict) and isinstance(record.get("kind"), str)
    return record if ours and isinstance(record.get("step"), int) else None
