"""Several processes train one model: the weights of one process, and nothing is lost with a rank.

They are started by PyTorch's launcher, as a user would, and talk by gloo over the loopback.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tfm.cli.main import main
from tfm.data.corpus import fingerprint, read_pairs
from tfm.data.errors import BackendError
from tfm.model.tensor_file import read_tensors
from tfm.model.training import distributed
from tfm.model.training.distributed import ALONE, joined
from tfm.model.training.signals import Interrupted, StopSignals

SIZE = [
    "tokenizer.vocab_size=320",
    "model.d_model=16",
    "model.d_ff=32",
    "model.heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.dropout=0.0",
    "training.batch_tokens=150",
    "training.warmup_steps=5",
    "training.validate_every=6",
    "training.validate_sentences=3",
    "training.checkpoint_every=4",
    "training.average_last=2",
    "decoding.max_length=10",
]
DEFAULTS = str(Path(__file__).with_name("defaults.toml"))  # without it, settings are chosen
# 203 pairs make batches of different sizes, and an epoch that two ranks cannot share equally.
CORPORA = ["--train", "builtin:203", "--valid", "builtin:10", "--precision", "fp32"]


def arguments(output: Path, steps: int, *more: str) -> list[str]:
    sets = [word for setting in SIZE for word in ("--set", setting)]
    return [
        "train",
        "--config",
        DEFAULTS,
        *sets,
        *CORPORA,
        *(("--steps", str(steps)) if steps else ()),
        "-o",
        str(output),
        *more,
    ]


def launch(output: Path, steps: int, *more: str, restarts: int = 0) -> subprocess.Popen:
    """Start two ranks of `tfm train` in a session of their own."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command = [*launcher, "--max-restarts", str(restarts), "-m", "tfm.cli"]
    return subprocess.Popen(
        [sys.executable, *command, *arguments(output, steps, *more)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen, *, seconds: float = 120) -> str:
    try:
        return process.communicate(timeout=seconds)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def weights(output: Path) -> dict[str, torch.Tensor]:
    return read_tensors(output / "model.safetensors").tensors


def state(output: Path) -> dict[str, torch.Tensor]:
    return read_tensors(output / "checkpoints" / "last.safetensors").tensors


def learned(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Leave out the biases of keys: they add the same to all scores of a row, which the softmax
    takes away, so that their gradient is rounding alone, and Adam makes whole steps of it."""
    D = 16
    for name, tensor in tensors.items():
        if name.endswith("projection.bias"):  # queries, keys, values
            tensor[D : 2 * D] = 0
        if name.endswith("key_value.bias"):
            tensor[:D] = 0
    return tensors


def steps_done(output: Path) -> int:
    path = output / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return max((json.loads(line)["step"] for line in lines), default=0)


def ranks_of(process: subprocess.Popen) -> dict[int, int]:
    """Return the process number of each rank under the launcher."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (entry / "stat").exists():
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == process.pid:
                environment = (entry / "environ").read_bytes().split(b"\0")
                ranks = [word for word in environment if word.startswith(b"RANK=")]
                found |= {int(word[5:]): int(entry.name) for word in ranks}
    return found


def test_one_process_needs_no_others():
    tensor = torch.ones(3)
    ALONE.add_up([tensor])
    ALONE.wait()
    assert tensor.tolist() == [1, 1, 1] and ALONE.first
    assert ALONE.totals(2, 3) == [2, 3] and ALONE.largest(15) == 15
    assert ALONE.from_first(lambda: "result") == "result"
    assert ALONE.collect(lambda: ALONE.share("abc")) == ["a", "b", "c"]


def test_a_signal_that_any_rank_has_received_stops_this_one():
    with StopSignals() as signals:
        signals.check(lambda number: number)
        with pytest.raises(Interrupted, match="SIGTERM"):
            signals.check(lambda number: max(number, signal.SIGTERM))


def test_two_ranks_give_the_weights_of_one_process_with_the_same_global_batches(tmp_path):
    """Uneven data included; the first rank alone writes and speaks."""
    together = launch(tmp_path / "two", 12)
    assert main(arguments(tmp_path / "one", 12, "--set", "training.accumulate=2")) == 0
    output = finish(together)
    assert together.returncode == 0, output
    expected, found = (learned(weights(tmp_path / name)) for name in ("one", "two"))
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=2e-5)
    said = [line for line in output.splitlines() if "finished at step 12" in line]
    assert len(said) == 1
    one, two = ((tmp_path / name / "metrics.jsonl").read_text() for name in ("one", "two"))
    records = [[json.loads(line) for line in text.splitlines()] for text in (one, two)]
    steps = [[(record["kind"], record["step"]) for record in run] for run in records]
    assert steps[0] == steps[1], "two that write would write each record twice"
    # Adam's weights would not show a gradient that is scaled: its norm does, before it is clipped.
    seen = [
        [(record["loss"], record["gradient_norm"]) for record in run if "gradient_norm" in record]
        for run in records
    ]
    assert seen[0] and np.array(seen[1]) == pytest.approx(np.array(seen[0]), rel=1e-3)


def test_all_ranks_learn_from_the_pairs_that_the_first_one_has_made(tmp_path: Path) -> None:
    run = tmp_path / "run"
    phases = ("--set", "training.backward_steps=3", "--set", "training.forward_steps=4")
    process = launch(run, 12, *phases)
    output = finish(process)
    assert process.returncode == 0, output
    header = read_tensors(run / "checkpoints" / "last.safetensors").header
    given = list(read_pairs("builtin:203", source="en", target="de", split="train"))
    for what in ("back-translations", "forward-translations"):
        path = run / f"{what}.tsv"
        made = list(read_pairs(str(path), source="en", target="de", split="train"))
        side = "target" if what == "back-translations" else "source"
        assert [getattr(pair, side) for pair in made] == [getattr(pair, side) for pair in given]
        assert header["progress"]["made"][what] == fingerprint(made)
        assert output.count(str(path)) == 1
    assert steps_done(run) == 12


@pytest.fixture
def second_of_two_beside_one_gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let this be such a process; return the list of the backends by which it joins the other."""
    backends: list[str] = []
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(distributed, "_meet", lambda place, backend: backends.append(backend))
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: None)
    return backends


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_more_processes_than_gpus_are_refused(
    second_of_two_beside_one_gpu: list[str], device: str
) -> None:
    with pytest.raises(BackendError, match="rank 1: .* --nproc-per-node 1"), joined(device):
        pass
    assert not second_of_two_beside_one_gpu


def test_on_the_cpu_there_may_be_more_processes_than_gpus(
    second_of_two_beside_one_gpu: list[str],
) -> None:
    with joined("cpu") as ranks:
        assert ranks.rank == 1 and second_of_two_beside_one_gpu == ["gloo"]


def test_what_one_rank_cannot_do_is_told_once(tmp_path):
    process = launch(tmp_path / "run", 12, "--train", str(tmp_path / "missing"))
    output = finish(process)
    assert process.returncode == 1
    errors = [line for line in output.splitlines() if "tfm: error:" in line]
    assert len(errors) == 1 and "missing" in errors[0]
    assert 'tfm/cli/main.py"' not in output  # no traceback of ours


def test_processes_that_do_not_find_each_other_say_so_in_one_line(run_tfm, tmp_path):
    place = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    found = run_tfm(*arguments(tmp_path / "run", 2), **place)
    assert found.code == 1 and "rank 1 of 2: did not find the other" in found.stderr
    assert found.stderr.count("\n") == 1


@pytest.mark.slow
def test_sigterm_lets_all_ranks_finish_the_step_and_the_command_goes_on(tmp_path):
    whole = launch(tmp_path / "whole", 60)
    output = finish(whole)
    assert whole.returncode == 0, output
    stopped = launch(tmp_path / "stopped", 60)
    while steps_done(tmp_path / "stopped") < 10:
        assert stopped.poll() is None, stopped.communicate()[0]
        time.sleep(0.05)
    stopped.send_signal(signal.SIGTERM)
    assert "stopped by SIGTERM" in finish(stopped)
    assert stopped.returncode != 0
    again = launch(tmp_path / "stopped", 60)
    output = finish(again)
    assert again.returncode == 0, output
    expected, found = state(tmp_path / "whole"), state(tmp_path / "stopped")
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.slow
def test_a_dead_rank_ends_all_with_a_line_that_names_it(tmp_path):
    process = launch(tmp_path / "run", 100_000)
    while steps_done(tmp_path / "run") < 10:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    ranks = ranks_of(process)
    os.kill(ranks[1], signal.SIGKILL)
    output = finish(process, seconds=60)
    assert process.returncode == 1
    root_cause = output[output.index("Root Cause") :]
    assert "rank      : 1" in root_cause and "SIGKILL" in root_cause
    assert not any(Path(f"/proc/{number}").exists() for number in ranks.values())


@pytest.mark.slow
def test_a_restart_after_a_dead_rank_gives_the_weights_of_an_undisturbed_run(tmp_path):
    whole = launch(tmp_path / "whole", 80)
    output = finish(whole)
    assert whole.returncode == 0, output
    disturbed = launch(tmp_path / "disturbed", 80, restarts=1)
    while steps_done(tmp_path / "disturbed") < 20:
        assert disturbed.poll() is None, disturbed.communicate()[0]
        time.sleep(0.02)
    os.kill(ranks_of(disturbed)[1], signal.SIGKILL)
    output = finish(disturbed)
    assert disturbed.returncode == 0, output
    expected, found = state(tmp_path / "whole"), state(tmp_path / "disturbed")
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_two_ranks_that_have_a_limited_time_take_the_same_steps(tmp_path: Path) -> None:
    """Or one of them would wait for a step that the other does not take."""
    run = tmp_path / "run"
    out = finish(launch(run, 0, "--time", "15s"))
    assert "finished at step " in out, out
    timetable = read_tensors(run / "checkpoints" / "last.safetensors").header["progress"][
        "timetable"
    ]
    assert timetable["last"] == steps_done(run) and timetable["seconds"] == 15
