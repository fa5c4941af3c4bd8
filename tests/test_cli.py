"""The command `tfm`: exit codes, one line per error, a quiet stdout, and help at once.

The processes run the real `main` with one more verb, `act`, which does what an error needs.
"""

import errno
import io
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import typer

from tfm.cli.console import Log, one_line
from tfm.cli.main import app
from tfm.model.settings import DecodingSettings

ACT = """
import errno, sys, time
from pathlib import Path
from typing import Annotated
import typer
from tfm.cli.console import note, warn
from tfm.cli.main import app, main
from tfm.cli.options import Debug
from tfm.data.errors import DataError

@app.command("act")
def act(what: Annotated[str, typer.Argument()], debug: Debug = False) -> None:
    match what:
        case "nothing":
            print("done")
        case "user":
            raise DataError("in.txt: line 3:\\n  bad \\x1b[31mword\\u2028; remove it")
        case "missing":
            open("no/such/file")
        case "nameless":
            raise OSError(errno.EBADF, "Bad file descriptor")
        case "bug":
            raise ZeroDivisionError("ours")
        case "end-of-file":
            raise EOFError("ours too")
        case "text":
            print("caf\\u00e9 \\udcff\\u2028.", end="\\n")
        case "say":
            note("[bold]" + 300 * "x" + " :smile:")
            warn("look at [3]:\\nnow")
        case "chatter":
            for number in range(20_000):
                note(f"{number}")
            print("done")
        case "flood":
            for number in range(100_000):
                print(number)
        case "memory":
            raise MemoryError
        case "device memory":
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        case "wait":
            try:
                print("ready", flush=True)
                time.sleep(30)
            finally:
                Path("cleaned").touch()

sys.exit(main())
"""


RunTfm = Callable[..., Any]  # the fixture of conftest.py: code, stdout, stderr


@pytest.fixture(scope="session")
def act(run_tfm: RunTfm) -> RunTfm:
    return partial(run_tfm, program=("-c", ACT))


def test_success_is_zero_and_leaves_stderr_alone(act: RunTfm) -> None:
    assert act("act", "nothing") == (0, b"done\n", "")


def test_a_users_error_is_one_printable_line_and_one(act: RunTfm) -> None:
    message = "tfm: error: in.txt: line 3: bad \\x1b[31mword ; remove it\n"
    assert act("act", "user") == (1, b"", message)


def test_a_file_that_cannot_be_opened_is_the_users_error(act: RunTfm) -> None:
    assert act("act", "missing") == (
        1,
        b"",
        "tfm: error: no/such/file: No such file or directory\n",
    )


@pytest.mark.parametrize("arguments", [("--debug", "act", "user"), ("act", "user", "--debug")])
def test_debug_shows_the_traceback_wherever_it_stands(
    act: RunTfm, arguments: tuple[str, ...]
) -> None:
    done = act(*arguments)
    assert done.code == 1
    assert done.stderr.startswith("Traceback (most recent call last)")
    assert done.stderr.splitlines()[-1].startswith("tfm: error: in.txt: line 3")


@pytest.mark.parametrize(
    ("what", "last_line"),
    [
        ("bug", "ZeroDivisionError: ours"),
        ("end-of-file", "EOFError: ours too"),
        ("nameless", "OSError: [Errno 9] Bad file descriptor"),
    ],
)
def test_a_bug_keeps_its_plain_traceback(act: RunTfm, what: str, last_line: str) -> None:
    done = act("act", what)
    assert done.code not in (0, 2)
    assert done.stderr.startswith("Traceback (most recent call last)")
    assert done.stderr.splitlines()[-1] == last_line


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("acts",), "'acts'"),
        (("act",), "what"),
        (("act", "nothing", "more"), "more"),
        (("act", "nothing", "--colour"), "--colour"),
        (("tokenizer",), "Missing command; see tfm tokenizer --help"),
    ],
)
def test_wrong_usage_is_two_and_one_line_that_points_to_help(
    act: RunTfm, arguments: tuple[str, ...], part: str
) -> None:
    done = act(*arguments)
    assert (done.code, done.stdout) == (2, b"")
    assert done.stderr.startswith("tfm: error: ")
    assert done.stderr.endswith(" --help\n")
    assert done.stderr.count("\n") == 1
    assert part in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train",), "needs --train CORPUS and -o DIR; see tfm train --help"),
        (
            ("eval", "--test", "builtin"),
            "give a MODEL to translate with, or --hypotheses FILE to score; see tfm eval --help",
        ),
        (
            ("inspect-attention", "model", "text", "--format", "gif"),
            "Invalid value for --format: 'gif' is none of npz, json, svg, png; "
            "see tfm inspect-attention --help",
        ),
    ],
)
def test_wrong_usage_that_a_verb_finds_itself_reads_the_same(
    run_tfm: RunTfm, arguments: tuple[str, ...], message: str
) -> None:
    assert run_tfm(*arguments) == (2, b"", f"tfm: error: {message}\n")


@pytest.mark.parametrize(
    ("variables", "escapes"), [({}, True), ({"NO_COLOR": "1"}, False), ({"CI": "true"}, False)]
)
def test_a_terminal_gets_colours_and_a_bar_unless_told_otherwise(
    on_a_terminal: Callable[..., bytes],
    tiny_model: Path,
    tiny_corpus: str,
    variables: dict[str, str],
    escapes: bool,
) -> None:
    """Promise 2: NO_COLOR and CI are respected even where stderr is a terminal."""
    on = partial(on_a_terminal, **variables)
    said = on("-c", ACT, "act", "say")
    assert b"tfm: warning: look at [3]: now" in said
    assert (b"\x1b" in said) == escapes
    progress = on("-m", "tfm.cli", "eval", tiny_model, "--test", tiny_corpus)
    assert b"attention" in progress
    assert (b"\x1b" in progress) == escapes


@pytest.mark.parametrize(
    ("sent", "code", "said"),
    [(signal.SIGINT, 130, "tfm: error: interrupted\n"), (signal.SIGTERM, 143, "")],
)
def test_a_signal_ends_through_the_clean_up(
    environment: dict[str, str], tmp_path: Path, sent: signal.Signals, code: int, said: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ACT, "act", "wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(sent)
    _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr.decode()) == (code, said)
    assert (tmp_path / "cleaned").exists()


INTERRUPTED = """
import ctypes, runpy, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == IMPORTED:
            code, names = b"import signal; signal.raise_signal(signal.SIGINT)", {}
            interpret = ctypes.pythonapi.PyRun_String  # as C code does while it is imported
            interpret.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.py_object, ctypes.py_object]
            interpret.restype = ctypes.py_object
            interpret(code, 257, names, names)

sys.meta_path.insert(0, Finder())
sys.argv[0] = "tfm"
"""
MODULE = "runpy.run_module('tfm.cli', run_name='__main__')"
SCRIPT = "from tfm.cli.__main__ import run; sys.exit(run())"


@pytest.mark.parametrize("imported", ["typer", "tfm.cli.train", "torch", "torch.nn"])
@pytest.mark.parametrize("start", [MODULE, SCRIPT])
def test_ctrl_c_during_imports_is_one_line(
    environment: dict[str, str], tmp_path: Path, start: str, imported: str
) -> None:
    code = f"IMPORTED = {imported!r}\n{INTERRUPTED}{start}"
    command = [sys.executable, "-c", code, "train", "--train", "builtin:9", "-o", "run"]
    done = subprocess.run(
        command, capture_output=True, env=environment, cwd=tmp_path, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "tfm: error: interrupted\n"


def test_the_installed_script_begins_where_the_module_does() -> None:
    """`tfm` of a source tree is not installed: what it would call is what the test above runs."""
    project = Path(__file__).resolve().parent.parent / "pyproject.toml"
    scripts = tomllib.loads(project.read_text("utf-8"))["project"]["scripts"]
    assert scripts == {"tfm": "tfm.cli.__main__:run"}


def test_a_closed_pipe_ends_quietly(environment: dict[str, str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ACT, "act", "flood"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == b"0\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=20) == 141


def test_work_goes_on_when_nobody_reads_what_it_says(environment: dict[str, str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ACT, "act", "chatter"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stderr.readline() == b"0\n"
    process.stderr.close()
    assert process.stdout.read() == b"done\n"
    assert process.wait(timeout=60) == 0


def test_a_terminal_that_is_gone_silences_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without SIGHUP, as after `disown`, the next write fails with EIO: work must go on."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.EIO, "Input/output error")

    log = Log(file=Gone())
    closed: list[bool] = []
    monkeypatch.setattr(log, "on_broken_pipe", lambda: closed.append(True))
    log.print("step 1")
    assert closed == [True]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("arguments", [("act", "flood"), ("act", "nothing"), ("--help",)])
def test_a_full_disk_is_the_users_error(
    environment: dict[str, str], arguments: tuple[str, ...]
) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", ACT, *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr == b"tfm: error: No space left on device\n"


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-16"])
def test_stdout_is_utf8_whatever_the_locale_says(act: RunTfm, encoding: str) -> None:
    done = act("act", "text", PYTHONIOENCODING=encoding, LC_ALL="C")
    assert (done.code, done.stdout) == (0, "café \\udcff\u2028.\n".encode())


def test_what_a_run_says_is_one_line_on_stderr_without_markup(act: RunTfm) -> None:
    said = "[bold]" + 300 * "x" + " :smile:\ntfm: warning: look at [3]: now\n"
    assert act("act", "say") == (0, b"", said)


def test_help_is_there_at_once_and_loads_no_heavy_module(environment: dict[str, str]) -> None:
    """Promise of `tfm --help`: under half a second; the processor's time, as machines are busy."""
    code = (
        "import sys, time\n"
        "from tfm.cli.main import main\n"
        "assert main(['--help']) == 0\n"
        "assert time.process_time() < 0.5, time.process_time()\n"
        "heavy = {'torch', 'numpy', 'datasets', 'sacrebleu', 'sentencepiece', 'safetensors'}\n"
        "ours = {'', '.settings', '.decoding', '.request'}  # a verb imports the rest as it runs\n"
        "ours = {f'tfm.model{name}' for name in ours}\n"
        "loaded = {m for m in sys.modules if m in heavy or m.startswith('tfm.model')} - ours\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=environment, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"inspect-attention" in done.stdout


def test_no_argument_at_all_shows_the_help(run_tfm: RunTfm) -> None:
    assert run_tfm() == run_tfm("--help")
    assert run_tfm().code == 0


NETWORK_VERBS = ["train", "translate", "eval", "score", "inspect-attention", "demo", "bench train"]
TOKENIZER_VERBS = ["tokenizer train", "tokenizer encode", "tokenizer decode"]
OTHER_VERBS = ["bench attention"]  # it runs attention alone, by all backends


@pytest.mark.parametrize("verb", [*NETWORK_VERBS, *TOKENIZER_VERBS, *OTHER_VERBS])
def test_every_verb_has_help_and_the_debug_flag(run_tfm: RunTfm, verb: str) -> None:
    done = run_tfm(*verb.split(), "--help")
    assert (done.code, done.stderr) == (0, "")
    assert b"--debug" in done.stdout
    assert b"\x1b" not in done.stdout


@pytest.mark.parametrize("verb", [*NETWORK_VERBS, *TOKENIZER_VERBS, *OTHER_VERBS])
def test_every_option_and_argument_is_explained(verb: str) -> None:
    params = params_of(verb)
    assert params
    assert [param.name for param in params if not param.help] == []


def params_of(verb: str) -> list[Any]:
    command: Any = typer.main.get_command(app)
    for name in verb.split():
        command = command.commands[name]
    return list(command.params)


@pytest.mark.parametrize("verb", NETWORK_VERBS)
def test_every_verb_that_runs_the_network_lets_choose_how(verb: str) -> None:
    flags = {flag for param in params_of(verb) for flag in param.opts}
    assert {"--device", "--precision", "--attention"} <= flags


@pytest.mark.parametrize("verb", ["train", "eval", "tokenizer train", "bench train"])
def test_a_verb_that_reads_a_corpus_says_what_that_is(run_tfm: RunTfm, verb: str) -> None:
    text = " ".join(run_tfm(*verb.split(), "--help").stdout.decode().split())
    assert "A CORPUS is PREFIX" in text and "builtin[:N]" in text


def test_help_gives_the_defaults_of_the_search(run_tfm: RunTfm) -> None:
    text = " ".join(run_tfm("translate", "--help").stdout.decode().split())
    default = DecodingSettings()
    assert f"decoding.beam; {default.beam} if not set" in text
    assert f"decoding.length_penalty; {default.length_penalty:g} if not set" in text


def test_the_length_penalty_is_one_formula_and_printed_in_help(run_tfm: RunTfm) -> None:
    text = " ".join(run_tfm("translate", "--help").stdout.decode().split())
    assert "log P / n^A" in text


def test_dump_config_prints_a_file_that_prints_itself(run_tfm: RunTfm, tmp_path: Path) -> None:
    first = run_tfm("train", "--config", "iwslt14", "--steps", "7", "--dump-config")
    assert first.code == 0, first.stderr
    assert b"steps = 7\n" in first.stdout
    path = tmp_path / "resolved.toml"
    path.write_bytes(first.stdout)
    assert run_tfm("train", "--config", path, "--dump-config").stdout == first.stdout


def test_a_bad_setting_is_one_line(run_tfm: RunTfm) -> None:
    done = run_tfm("train", "--config", "demo", "--set", "model.nrom=pre")
    assert done == (
        2,
        b"",
        "tfm: error: --set model.nrom=pre: unknown key `nrom`; did you mean `norm`?\n",
    )


def test_the_version_is_the_packages(run_tfm: RunTfm) -> None:
    try:
        expected = version("tfm")
    except PackageNotFoundError:
        expected = "unknown"  # a source tree on the import path
    assert run_tfm("--version") == (0, f"tfm {expected}\n".encode(), "")


def test_one_line_keeps_printable_text_as_it_is() -> None:
    assert one_line("a  b: größer ✓") == "a  b: größer ✓"
    assert one_line("a\r\n\n b\x85c\x00") == "a b c\\x00"
    assert one_line("name\udcff") == "name\\udcff"


@pytest.mark.parametrize(
    ("closed", "verb", "code", "stdout"),
    [
        ("<&-", "decode", 1, b""),  # needs stdin
        (">&-", "--help", 1, b""),  # needs stdout
        ("2>&-", "--dump-config", 0, b"[data]"),
        ("<&- 2>&-", "--dump-config", 0, b"[data]"),
        ("<&- >&- 2>&-", "--dump-config", 1, b""),
    ],
)
def test_a_closed_stream_is_the_users_error_where_it_is_needed(
    environment: dict[str, str],
    tiny_model: Path,
    closed: str,
    verb: str,
    code: int,
    stdout: bytes,
) -> None:
    words = {"decode": ["tokenizer", "decode", str(tiny_model)], "--help": ["--help"]}
    command = [sys.executable, "-m", "tfm.cli", *words.get(verb, ["train", verb])]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command],
        capture_output=True,
        env=environment,
        timeout=60,
    )
    assert (done.returncode, done.stdout[:6]) == (code, stdout[:6])
    if code == 1 and "2>" not in closed:
        assert done.stderr.count(b"\n") == 1
        assert b"standard input or output is closed" in done.stderr


def test_results_for_a_closed_stdout_never_land_in_another_file(
    environment: dict[str, str], tiny_model: Path, tmp_path: Path
) -> None:
    """The first file that is opened would get the number of stdout."""
    command = [sys.executable, "-m", "tfm.cli", "translate", str(tiny_model), "-o", "out"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command],
        input=b"A dog runs.\n",
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_bytes().count(b"\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("what", ["memory", "device memory"])
def test_too_little_memory_is_the_users_error(act: RunTfm, what: str) -> None:
    code, stdout, stderr = act("act", what)
    assert (code, stdout, stderr.count("\n")) == (1, b"", 1)
    assert stderr.startswith("tfm: error: out of memory; a smaller model")
