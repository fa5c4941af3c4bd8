"""What several test files share: a way to run `tfm`, small corpora, and the hardware marks."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent

PAIRS = [
    ("A dog runs.", "Ein Hund rennt."),
    ("The cat sleeps.", "Die Katze schläft."),
    ("A man rides a red bike.", "Ein Mann fährt ein rotes Fahrrad."),
    ("Two children play in the garden.", "Zwei Kinder spielen im Garten."),
    ("The woman reads a book.", "Die Frau liest ein Buch."),
    ("I do not see the house.", "Ich sehe das Haus nicht."),
]


class Finished(NamedTuple):
    """What a process left: stdout as bytes, for the line contract; stderr as text."""

    code: int
    stdout: bytes
    stderr: str


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Return the environment that tests give to a process: one thread, no colours."""
    unwanted = ("FORCE_COLOR", "PYTHONIOENCODING", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return kept | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


@pytest.fixture(scope="session")
def run_tfm(environment: dict[str, str]) -> Callable[..., Finished]:
    """Run `tfm` in a process of its own: `run_tfm("translate", model, stdin=b"...", cwd=...)`.

    `program` replaces `-m tfm.cli`; other keywords are environment variables.
    """

    def run(
        *arguments: str | Path,
        program: tuple[str, ...] = ("-m", "tfm.cli"),
        stdin: bytes = b"",
        cwd: Path | None = None,
        timeout: float = 300,
        **variables: str,
    ) -> Finished:
        done = subprocess.run(
            [sys.executable, *program, *map(str, arguments)],
            input=stdin,
            capture_output=True,
            cwd=cwd,
            env=environment | variables,
            timeout=timeout,
        )
        return Finished(done.returncode, done.stdout, done.stderr.decode())

    return run


@pytest.fixture
def tiny_corpus(tmp_path: Path) -> str:
    """Write six pairs as `tiny.en` and `tiny.de`; return their prefix, a corpus string."""
    prefix = tmp_path / "tiny"
    for language, side in (("en", 0), ("de", 1)):
        text = "".join(pair[side] + "\n" for pair in PAIRS)
        Path(f"{prefix}.{language}").write_text(text, encoding="utf-8", newline="")
    return str(prefix)


@pytest.fixture(scope="session")
def multi30k() -> Path:
    """Return the folder of Multi30k (TFM_MULTI30K, or beside the repository), or skip."""
    folder = Path(os.environ.get("TFM_MULTI30K", ROOT.parent / "shared/data/multi30k"))
    if not (folder / "train.en").is_file():
        pytest.skip("no Multi30k: set TFM_MULTI30K to the folder of train.en and train.de")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked `gpu` where there is none."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU (make gpu-check)"))
