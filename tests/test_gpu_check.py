"""The GPU check: what can be known of it on a machine without a GPU."""

import importlib.util
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from tfm.data.errors import BackendError
from tfm.model.attention import formula, sdpa
from tfm.model.attention.choice import BACKENDS
from tfm.model.benchmarks.entries import Deadline, Entry, attempt, table
from tfm.model.benchmarks.equality import compare_backends
from tfm.model.benchmarks.networks import Load, random_batch, search_entries, training_entries
from tfm.model.benchmarks.products import training_flops
from tfm.model.settings import Settings

SCRIPT = Path(__file__).with_name("gpu_check.py")
CPU = torch.device("cpu")
SMALL = [
    "model.d_model=16", "model.d_ff=32", "model.heads=2", "model.encoder_layers=1",
    "model.decoder_layers=1", "training.batch_tokens=64",
]  # fmt: skip
LOAD = Load(vocabulary=50, lengths=(8,), sentences=4)


@pytest.fixture(scope="module")
def gpu_check():
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line(tmp_path):
    command = [sys.executable, str(SCRIPT), "-o", str(tmp_path / "report")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == "gpu-check: no NVIDIA GPU is available to this PyTorch\n"
    assert not (tmp_path / "report").exists()


def test_a_place_for_the_report_that_cannot_be_is_refused_first(gpu_check, monkeypatch, capsys):
    monkeypatch.setattr(gpu_check, "measure", lambda _: pytest.fail("measured"))
    flags = ["--device", "cpu", "--small", "--no-tests", "-o", __file__]
    assert gpu_check.main(flags) == 1
    err = capsys.readouterr().err
    assert err == f"gpu-check: {__file__}: a file, not a directory; choose another -o\n"


def test_all_of_it_goes_into_one_table_and_one_json(gpu_check, tmp_path, capsys):
    flags = ["--device", "cpu", "--small", "--no-tests", "-o", str(tmp_path)]
    assert gpu_check.main(flags) == 0
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "gpu-check.txt").read_text()
    report = json.loads((tmp_path / "gpu-check.json").read_text())
    assert report["passed"] and report["device"] == "cpu" and report["seconds"] > 0
    for name in ("equality", "training", "search", "attention"):
        assert f"{name}\n" in printed
    places = {(row["attention"], row["backend"], row["dtype"]) for row in report["equality"]}
    assert len(report["equality"]) == 2 * len(places) == 2 * 2 * (3 * 3 + 4 + 2)
    assert all(row["within"] for row in report["equality"])
    assert {(row["preset"], row["backend"], row["padded"]) for row in report["training"]} == {
        (preset, backend, padded)
        for preset in ("wmt14-base", "wmt14-big")
        for backend in BACKENDS
        for padded in (False, True)
    }
    assert all(row["sentences_per_s"] > 0 for row in report["search"])
    assert {row["length"] for row in report["attention"]["rows"]} == {64, 128}


def test_a_backend_that_is_wrong_is_found_and_the_others_are_not(monkeypatch):
    def slightly_off(q, k, v, **options):
        return formula.attend(q, k, 1.001 * v, **options)

    monkeypatch.setattr(sdpa, "attend", slightly_off)
    rows = list(compare_backends(CPU, ["fp32"], 9, Deadline(60)))
    found = {row.labels["backend"] for row in rows if row.broken}
    places = {row.labels["attention"] for row in rows if row.broken}
    assert found == {"sdpa", "flash"}  # on a CPU both are the same kernel
    assert places == {"encoder", "decoder", "cross"}
    assert "BROKEN" in table("equality", rows)


def test_a_result_that_is_no_number_is_wrong(monkeypatch):
    monkeypatch.setattr(sdpa, "attend", lambda q, k, v, **_: (q + k + v) * torch.nan)
    rows = compare_backends(CPU, ["fp32"], 9, Deadline(60))
    assert next(row for row in rows if row.labels["backend"] == "sdpa").broken


@pytest.mark.parametrize("padded", [False, True])
def test_a_batch_fills_its_budget_with_or_without_padding(padded):
    batch = random_batch(50, 640, 32, padded=padded)
    assert batch.source.shape == batch.target_in.shape == (20, 32)
    assert batch.source_lengths.max() == 32
    assert batch.source_lengths.min() == (8 if padded else 32)
    assert (batch.source_lengths.sum() == batch.source.size) != padded


def test_training_counts_the_tokens_and_products_of_a_step():
    rows = list(training_entries(["wmt14-base"], LOAD, CPU, ["fp32"], Deadline(60), SMALL))
    assert not any(row.broken for row in rows)
    model = Settings.read("wmt14-base", SMALL).model
    for row in rows:
        batch = random_batch(50, 64, 8, padded=row.labels["padded"])
        seconds = row.figures["ms"] / 1e3
        assert row.figures["tokens_per_s"] * seconds == pytest.approx(batch.tokens)
        flops = training_flops(model, 50, batch)
        assert row.figures["tflops_per_s"] * seconds == pytest.approx(flops / 1e12)
        assert 0 < row.figures["share_of_peak"] < 1


def test_search_translates_into_as_many_pieces_as_it_counts():
    rows = list(search_entries(["wmt14-base"], LOAD, CPU, ["fp32"], Deadline(60), SMALL))
    assert [row.labels["beam"] for row in rows] == [1, 4]
    for row in rows:
        ratio = row.figures["pieces_per_s"] / row.figures["sentences_per_s"]
        assert ratio == pytest.approx(7) and row.figures["ms_one_at_a_time"] > 0


@pytest.mark.parametrize(
    "error, broken",
    [
        (BackendError("no"), False),
        (torch.OutOfMemoryError("no"), False),
        (RuntimeError("no\nand why not"), True),
        (ValueError("no"), True),
        (RuntimeError(), True),
    ],
)
def test_what_goes_wrong_is_part_of_the_report(error, broken):
    def fail():
        raise error

    row = attempt({"backend": "flash"}, fail, Deadline(60))
    assert row.broken == broken and row.to_json()["broken"] == broken
    assert row.not_run and f"flash  not run: {row.not_run}" in table("equality", [row])


def test_nothing_is_measured_once_the_time_is_up():
    late = Deadline(0)
    assert attempt({}, lambda: pytest.fail("measured"), late).not_run == "the time was up"
    rows = [
        *compare_backends(CPU, ["fp32"], 9, late),
        *training_entries(["wmt14-base"], LOAD, CPU, ["fp32"], late, SMALL),
        *search_entries(["wmt14-base"], LOAD, CPU, ["fp32"], late, SMALL),
    ]
    assert {row.not_run for row in rows} == {"the time was up"}
    assert not any(row.broken for row in rows)


def test_columns_are_as_wide_as_what_they_hold():
    rows = [
        Entry({"backend": "math"}, {"tokens_per_s": 12345.6, "within": True}),
        Entry({"backend": "a long name"}, {"tokens_per_s": 0.123456, "within": None}),
    ]
    assert table("title", rows).splitlines() == [
        "title",
        "backend      tokens_per_s  within",
        "math               12,346     yes",
        "a long name        0.1235",
    ]


def test_a_test_that_fails_or_hangs_fails_the_check(gpu_check, tmp_path, monkeypatch, capsys):
    head = "import time, pytest\n\n\n@pytest.mark.gpu\ndef test_it():\n    "
    run = partial(gpu_check.run_tests, tmp_path)
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:cacheprovider")
    (tmp_path / "test_one.py").write_text(head + "assert False\n")
    failed = run(60)
    assert failed["exit_code"] == 1 and "1 failed" in failed["summary"]
    (tmp_path / "test_one.py").write_text(head + "time.sleep(60)\n")
    assert run(3) == {"exit_code": 124, "summary": "not done within 3 seconds"}
    monkeypatch.setattr(gpu_check, "run_tests", lambda *_: failed)
    monkeypatch.setattr(gpu_check, "measure", lambda _: ({}, ""))
    monkeypatch.setattr(gpu_check, "broken", lambda _: False)
    assert gpu_check.main(["--device", "cpu", "--small", "-o", str(tmp_path)]) == 1
    assert "tests: 1 failed" in capsys.readouterr().out
