"""The command `tfm`: its verbs, and the one place that turns an error into an exit code.

    0    done
    1    the user's input or environment is at fault: one line, no traceback without --debug
    2    wrong usage; so is a value that no option of the name can have, whoever finds it
    130  interrupted (Ctrl-C)     141  stdout was closed     143  terminated
    129  the terminal was closed while training, which saves first

Anything else is a bug of ours and keeps its traceback. Verbs import torch inside themselves, so
that help is there at once.
"""

import errno
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import FrameType
from typing import Annotated, NoReturn

import typer

from tfm.cli.bench import bench
from tfm.cli.console import one_line
from tfm.cli.demo import demo
from tfm.cli.evaluate import evaluate
from tfm.cli.inspect_attention import inspect_attention
from tfm.cli.options import Debug
from tfm.cli.score import score
from tfm.cli.tokenizer import tokenizer
from tfm.cli.train import train
from tfm.cli.translate import translate
from tfm.cli.usage import describe_usage
from tfm.data.errors import OptionError, UserError

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, context_settings={"max_content_width": 100}
)
app.add_typer(
    tokenizer,
    name="tokenizer",
    help="Train a tokenizer; encode and decode text.",
    no_args_is_help=False,  # a missing command is one line, like any wrong usage
)
app.command(
    "train",
    short_help="Train a model on sentence pairs.",
    epilog="Example: tfm train --train data/train --valid data/valid -o runs/mine",
)(train)
app.command(
    "translate",
    short_help="Translate line by line.",
    epilog="Example: tfm translate runs/mine < in.en > out.de",
)(translate)
app.command(
    "eval",
    short_help="Translate a test set and score it.",
    epilog="Example: tfm eval runs/mine --test data/test",
)(evaluate)
app.command(
    "score",
    short_help="Score given translations: log P, perplexity.",
    epilog="Example: tfm score runs/mine --test data/test",
)(score)
app.command(
    "inspect-attention",
    short_help="Show what a translation looks at.",
    epilog='Example: tfm inspect-attention runs/mine "A dog runs." -o report/',
)(inspect_attention)
app.add_typer(
    bench,
    name="bench",
    help="Measure how fast training, translation and attention are here.",
    no_args_is_help=False,
)
app.command("demo", short_help="Do it all on the built-in corpus.")(demo)


@dataclass
class Run:
    """What the error boundary must know: the options of the verb say it, or the start."""

    debug: bool = False
    closed: bool = False  # whether stdin or stdout was, so that EBADF is no bug of ours


def _version() -> str:
    try:
        return version("tfm")
    except PackageNotFoundError:  # a source tree that is not installed
        return "unknown"


def _print_version(asked: bool) -> None:
    if asked:
        print(f"tfm {_version()}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True),
]


@app.callback()
def tfm(version: Version = False, debug: Debug = False) -> None:
    """Train, run, measure and explain encoder-decoder Transformers for translation."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `tfm` on `arguments` (default: the command line's) and return the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    run = Run(closed=_open_what_is_closed())
    _speak_utf8()
    signal.signal(signal.SIGTERM, _terminate)
    try:
        try:
            _invoke(arguments or ["--help"], run)
        finally:
            sys.stdout.flush()  # here, where a closed pipe is caught, and not at Python's exit
    except typer.Exit as request:
        return request.exit_code
    except typer.TyperException as error:
        return _fail(describe_usage(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:
        _settle_stdout()
        return 141
    except (UserError, OSError, MemoryError, RuntimeError) as error:
        _settle_stdout()
        if not _is_users(error, run):
            raise
        if run.debug:
            traceback.print_exc()
        return _fail(_describe(error), 2 if isinstance(error, OptionError) else 1)
    return 0


def _invoke(arguments: Sequence[str], run: Run) -> None:
    # Typer's own `app()` would turn EOFError and Ctrl-C into its exceptions and choose exit codes.
    command = typer.main.get_command(app)
    with command.make_context("tfm", list(arguments), obj=run) as context:
        command.invoke(context)


# Without a file name an OSError is the user's only if the machine ran out of something, or if a
# standard stream is closed.
EXHAUSTED = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE}


def _is_users(error: Exception, run: Run) -> bool:
    if isinstance(error, OSError):
        closed = run.closed and error.errno == errno.EBADF
        return closed or error.filename is not None or error.errno in EXHAUSTED
    return isinstance(error, UserError) or _is_out_of_memory(error)


def _is_out_of_memory(error: Exception) -> bool:
    # By its words: torch has a class for a GPU's memory only, and must not be imported here.
    text = str(error)
    return isinstance(error, MemoryError) or "out of memory" in text or "allocate memory" in text


def _describe(error: Exception) -> str:
    if isinstance(error, OSError):
        names = [str(name) for name in (error.filename, error.filename2) if name is not None]
        if not names and error.errno == errno.EBADF:
            return "standard input or output is closed; give it a file, as in < FILE or > FILE"
        return ": ".join([*names, error.strerror or str(error)])
    if isinstance(error, UserError):
        return str(error)
    return (
        "out of memory; a smaller model, training.batch_tokens, decoding.batch_tokens or beam "
        "needs less (--debug shows where)"
    )


def _fail(message: str, code: int) -> int:
    with suppress(OSError):  # nobody may be reading; the exit code still tells
        print(f"tfm: error: {one_line(message)}", file=sys.stderr)
    return code


def _open_what_is_closed() -> bool:
    """Give closed standard streams a file; return whether stdin or stdout was one of them.

    Python has None for a closed stream, and the next file that is opened would get its number.

    stdin and stdout are opened the wrong way round: whoever uses them gets EBADF, so that results
    are not lost in silence; a verb that does not need them works. What goes to stderr is dropped.
    """
    closed = sys.stdin is None or sys.stdout is None
    if sys.stdin is None:
        sys.stdin = open(os.open(os.devnull, os.O_WRONLY), encoding="utf-8")
    if sys.stdout is None:
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
    return closed


def _speak_utf8() -> None:
    """Write UTF-8 with LF on every platform; what UTF-8 cannot hold becomes an escape."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not so where a test captures the output
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="")


def _terminate(signum: int, frame: FrameType | None) -> NoReturn:
    """Leave through every `finally`, so that temporary files go. `train` saves first, by itself."""
    sys.exit(128 + signum)


def _settle_stdout() -> None:
    """Send what stdout no longer takes nowhere, or Python would try again and complain at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
