"""`tfm translate` by several processes: each takes the next part of the file until none is left.

    torchrun --nproc-per-node 2 -m tfm.cli translate MODEL --input FILE --output FILE

The parts are the windows in which one process translates the file, so that the same sentences are
translated side by side and the result is the same, byte for byte. A part is written once, whole, to
a directory beside the output; the first process joins them. A run that was killed goes on from the
parts that are there, with any number of processes.
"""

import hashlib
import io
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from tfm.cli import console
from tfm.cli.records import Record
from tfm.cli.translation_job import Job, Tally, windows
from tfm.data.errors import DataError
from tfm.data.lines import read_parsed, text_output
from tfm.data.parts import Parts

if TYPE_CHECKING:
    from tfm.model.training.distributed import Ranks


class Shared(NamedTuple):
    """What the processes share.

    Attributes:
        models: the model directories of the job, for their fingerprints.
        options: what else the text of a part follows from; their words count.
        device: that the user asked for.
    """

    input: Path
    output: Path
    models: Sequence[Path]
    options: Sequence[Any]
    device: str


def has_company() -> bool:
    """Return whether a launcher has started other processes beside this one."""
    from tfm.model.ranks import Place

    return Place.here().size > 1


def translate_together(load: Callable[[], Job], shared: Shared) -> Tally:
    """Translate a file with the processes that torchrun has started.

    Args:
        load: what makes the job, once the processes have joined: each has its GPU then, and what
            is wrong is told by one of them.

    Returns:
        What was written, on the first process; nothing on the others.
    """
    from tfm.model.training.distributed import joined

    with joined(shared.device) as ranks:
        console.log.quiet = not ranks.first
        job = load()
        started = time.perf_counter()
        said: list[str] = []
        job.translator.warn = said.append
        output = Path(os.path.realpath(shared.output))
        parts = Parts(output, _identity(job, shared.models, shared.options))
        paths = _translate_parts(job, shared.input, parts, ranks, said)
        ranks.wait()
        if not ranks.first:
            return Tally()
        tally = _join(parts, paths)
        tally.tell(time.perf_counter() - started)
        return tally


def require_files(input_: Path | None, output: Path | None) -> tuple[Path, Path]:
    """Refuse all but two files: what several processes read and write together."""
    if input_ is None or output is None or "-" in (str(input_), str(output)):
        raise typer.BadParameter("several processes need --input FILE and --output FILE")
    for path in (input_, output):
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: not a regular file, which several processes need")
    return input_, output


def _identity(job: Job, models: Sequence[Path], options: Sequence[Any]) -> dict[str, Any]:
    """Return what a part follows from beside its lines."""
    from tfm.model.checkpoint import WEIGHTS
    from tfm.model.tensor_file import tfm_version

    translator = job.translator
    weight = translator.model.target_embedding.weight
    return {
        "tfm": tfm_version(),
        "options": [str(option) for option in options],
        "weights": [_sha256(model / WEIGHTS) for model in models],
        "tokenizer": translator.tokenizer.fingerprint,
        "source": translator.settings.data.source,
        "limit": translator.limit,
        "decoding": asdict(translator.decoding),
        "machine": [weight.device.type, str(weight.dtype), translator.plan.describe()],
        "n_best": job.n_best,
        "alignment": job.alignment,
        "strict": job.strict,  # which a part with bad records would get around
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _translate_parts(
    job: Job, input_: Path, parts: Parts, ranks: "Ranks", said: list[str]
) -> list[Path]:
    """Make the parts that fall to this process; return where all of them are."""
    paths: list[Path] = []
    before = 0
    mine = ranks.take()
    for number, lines in enumerate(windows(read_parsed(input_, lambda raw, number: raw))):
        path = parts.path(number, lines)
        paths.append(path)
        if number == mine:
            if not path.exists():
                records = [job.parse(line, before + i) for i, line in enumerate(lines, start=1)]
                _make_part(job, records, before, parts, path, said)
            mine = ranks.take()
        before += len(lines)
    return paths


def _make_part(
    job: Job, records: list[Record], before: int, parts: Parts, path: Path, said: list[str]
) -> None:
    text, tally = io.StringIO(), Tally(records=before)
    job.write(records, text, tally)
    tally.records = len(records)
    parts.write(path, asdict(tally) | {"said": said}, text.getvalue())


def _join(parts: Parts, paths: Sequence[Path]) -> Tally:
    with text_output(parts.output) as file:
        headers = parts.join(paths, file)
    parts.remove()
    # Each process says a thing once, with the figures of its own line: one of those who said most.
    for text in max((header["said"] for header in headers), key=len, default=[]):
        console.warn(text)
    names = ("records", "truncated", "bad")
    return Tally(**{name: sum(header[name] for header in headers) for name in names})
