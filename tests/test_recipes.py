"""docs/recipes.md: what it says of the large presets is what they do, and what arithmetic gives."""

import re
from pathlib import Path

import numpy as np
import pytest

from tfm.data.batching import Batch
from tfm.model.benchmarks.products import training_flops
from tfm.model.settings import Settings
from tfm.model.transformer import Transformer

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "recipes.md").read_text("utf-8")
LARGE = ("wmt14-base", "wmt14-big")
LENGTH = 30  # pieces of a sentence, its end included
TARGET_TOKENS = 25_000  # of a step, and as many source tokens
PEAK = 989e12  # bf16 FLOP per second of an H200, without sparsity


def tables() -> list[list[dict[str, str]]]:
    """Return the tables of the page: rows by the names of their columns."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE):
        head, _, *rows = (
            [cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines()
        )
        found.append([dict(zip(head, row, strict=True)) for row in rows])
    return found


def number(cell: str) -> float:
    return float(re.sub(r"[,%`]| (?:minutes|hours|ms|M)$", "", cell))


def flops_of_a_token(preset: str) -> float:
    """Return the FLOP for a target token and the source token that comes with it."""
    settings = Settings.read(preset)
    ids = np.zeros((1, LENGTH), np.int32)
    lengths = np.array([LENGTH])
    batch = Batch(ids, lengths, ids, ids, lengths, np.array([0]))
    return training_flops(settings.model, settings.tokenizer.vocab_size, batch) / LENGTH


@pytest.mark.parametrize("preset", LARGE)
def test_the_formula_on_the_page_is_what_the_code_counts(preset: str) -> None:
    settings = Settings.read(preset)
    D, F, V = settings.model.d_model, settings.model.d_ff, settings.tokenizer.vocab_size
    S = T = LENGTH
    source = 6 * (4 * D**2 + 2 * D * F + 2 * S * D) + 6 * 2 * D**2
    target = 6 * (6 * D**2 + 2 * D * F + 2 * T * D + 2 * S * D) + V * D
    assert flops_of_a_token(preset) == 6 * (source + target)


@pytest.mark.parametrize("preset", LARGE)
def test_the_expected_schedule_follows_from_the_formula(preset: str) -> None:
    [row] = [row for table in tables() for row in table if row.get("preset") == f"`{preset}`"]
    steps = Settings.read(preset).training.steps
    token = flops_of_a_token(preset)
    step = token * TARGET_TOKENS
    assert number(row["steps"]) == steps
    assert number(row["GFLOP per target token"]) == pytest.approx(token / 1e9, abs=0.0005)
    assert number(row["TFLOP per step"]) == pytest.approx(step / 1e12, abs=0.05)
    assert number(row["EFLOP in all"]) == pytest.approx(step * steps / 1e18, abs=0.005)
    for share in (12, 30, 41):
        hours = step * steps / (share / 100 * PEAK) / 3600
        assert number(row[f"hours at {share} %"]) == pytest.approx(hours, abs=0.05)


def test_the_shares_of_the_peak_are_those_of_the_published_speeds() -> None:
    """Target tokens per second and GPU, and the peak of the GPU.

    The vocabularies of the three were not all of 37,000 pieces: hence the tolerance.
    """
    for preset, tokens, peak, share in (
        ("wmt14-base", 160e3 / 4, 125e12, 12),
        ("wmt14-big", 235e3 / 8, 125e12, 30),
        ("wmt14-big", 810e3 / 8, 312e12, 41),
    ):
        assert 100 * flops_of_a_token(preset) * tokens / peak == pytest.approx(share, abs=1)


@pytest.mark.parametrize("preset", LARGE)
def test_the_settings_on_the_page_are_those_of_the_preset(preset: str) -> None:
    settings = Settings.read(preset)
    [rows] = [table for table in tables() if "setting" in table[0]]
    for row in rows:
        for name in re.findall(r"`(\w+\.\w+)`", row["setting"]):
            section, key = name.split(".")
            value = getattr(getattr(settings, section), key)
            shown = row[preset].replace(",", "")
            assert value == (type(value)(shown) if not isinstance(value, bool) else shown), name


@pytest.mark.parametrize(("preset", "millions"), [("wmt14-base", 65), ("wmt14-big", 213)])
def test_the_presets_have_the_papers_number_of_parameters(preset: str, millions: int) -> None:
    """Table 3. The paper's vocabulary is "about 37,000": hence the tolerance."""
    import torch

    settings = Settings.read(preset)
    V = settings.tokenizer.vocab_size
    with torch.device("meta"):
        model = Transformer(settings.model, source_vocab=V, target_vocab=V, joint=True)
    assert model.num_parameters / 1e6 == pytest.approx(millions, rel=0.035)
    [row] = [row for table in tables() for row in table if row.get("preset") == f"`{preset}`"]
    assert number(row["parameters"]) == pytest.approx(model.num_parameters / 1e6, abs=0.05)
