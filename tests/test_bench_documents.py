"""`tfm bench documents`: the three encoders are trained, and compared by figures that are true."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch

from tfm.cli.main import main
from tfm.data.builtin.documents import builtin_documents
from tfm.model.attention.choice import resolve
from tfm.model.attention.conditions import Choice
from tfm.model.benchmarks import documents as benchmark
from tfm.model.benchmarks.clock import Cost
from tfm.model.benchmarks.documents import KINDS, Experiment, Row, assess, right_pronouns
from tfm.model.benchmarks.documents_report import Report, chart, table
from tfm.model.checkpoint import load_model
from tfm.model.settings import Settings
from tfm.model.translator import Translator

TINY = {
    "tokenizer.vocab_size": 450, "model.d_model": 16, "model.d_ff": 32, "model.heads": 2,
    "model.encoder_layers": 1, "model.decoder_layers": 1, "training.batch_tokens": 500,
}  # fmt: skip


def bench(where: Path, *flags: object) -> int:
    tiny = [f"--set={key}={value}" for key, value in TINY.items()]
    quick = ["--documents", 100, "--longest", 4, "--tested", 4, "--steps", 4, "-o", where]
    given = [*tiny, *quick, "--device", "cpu", "--precision", "bf16", *flags]
    return main(["bench", "documents", *map(str, given)])


def test_ctrl_c_leaves_no_half_report_and_the_command_goes_on(tmp_path, capsys, monkeypatch):
    measure = benchmark.measure_kind

    def interrupted(kind, *arguments):
        if kind == "linear":
            raise KeyboardInterrupt
        return measure(kind, *arguments)

    monkeypatch.setattr(benchmark, "measure_kind", interrupted)
    assert bench(tmp_path, "--lengths", "3") == 130
    assert {path.name for path in tmp_path.iterdir()} == set(KINDS)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(benchmark, "measure_kind", measure)
    before = {kind: (tmp_path / kind / "metrics.jsonl").read_bytes() for kind in KINDS}

    assert bench(tmp_path, "--lengths", "3,4,32,64", "--json") == 0
    after = {kind: (tmp_path / kind / "metrics.jsonl").read_bytes() for kind in KINDS}
    assert after == before, "what is trained is not trained again"
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "documents.json").read_text())
    ElementTree.parse(tmp_path / "documents.svg")
    check_report(found)
    tokenizers = {(tmp_path / kind / "tokenizer.model").read_bytes() for kind in KINDS}
    assert len(tokenizers) == 1, "all forms read the same pieces"
    for kind in KINDS:
        assert Settings.read(tmp_path / kind / "config.toml").model.encoder_attention == kind


def check_report(found: dict) -> None:
    assert [(row["encoder"], row["sentences"]) for row in found["rows"]] == [
        (kind, sentences) for kind in KINDS for sentences in (3, 4, 32, 64)
    ]
    for row in found["rows"]:
        assert row["seconds"] > 0 and row["peak_bytes"] > row["encoder_peak_bytes"] > 0
        assert ("bleu" in row) == ("pronouns_right" in row) == (row["sentences"] <= 4)
    # In half precision full attention holds the matrix of all pairs, as long as that is small.
    powers = {kind: found["slopes"][kind]["encoder_peak_bytes"] for kind in KINDS}
    assert powers["full"] > 1.7 and powers["local"] < 1.2 and powers["linear"] < 1.2
    assert found["train"] == "builtin-documents:100:3-4" and found["steps"] == 4


@pytest.mark.parametrize(
    ("translation", "right"),
    [
        ("Der Arzt hat einen Ball. Die Frau sucht ihn. Der Mann braucht ihn.", 2),
        ("Der Arzt hat einen Ball. Die Frau sucht ihn. Der Mann braucht sie.", 1),
        ("Er sieht ihn. Die Frau sucht es. Sie braucht sie.", 0),  # only the last two count
        ("Die Frau sucht ihn es. Der Mann braucht.", 0),
        ("Der Mann braucht ihn.", 1),
        ("Ihn sucht sie. Der Mann kauft ihn", 1),
        ("", 0),
    ],
)
def test_a_pronoun_is_right_where_it_is_the_only_one(translation, right):
    assert right_pronouns(translation, "ihn") == right


def test_quality_is_that_of_the_translations():
    documents = builtin_documents("test", 30, sentences=5)
    references = [document.pair.target for document in documents]
    wrong = {"ihn": "sie", "sie": "es", "es": "ihn"}

    def translated(texts):
        assert texts == [document.pair.source for document in documents]
        return references

    perfect = assess(SimpleNamespace(translate=translated), documents)
    assert perfect.bleu == pytest.approx(100) and perfect.pronouns == 1
    assert 1 / 3 <= perfect.guessing < 0.6
    one = SimpleNamespace(translate=lambda _: references)
    swapped = [replace(document, pronoun=wrong[document.pronoun]) for document in documents]
    assert assess(one, swapped).pronouns == 0


def test_no_document_is_too_long_to_be_learned_or_translated():
    def settings(longest: int) -> Settings:
        return Experiment(Settings(), 10, longest, [3], 5).settings_of("local")

    assert settings(8).data.max_length == 320 and settings(100).data.max_length == 4000
    assert settings(100).decoding.max_length == 4000
    assert settings(8).model.encoder_attention == "local"


def rows(kind: str) -> list[Row]:
    quality = benchmark.Quality(87.654, "nrefs:1", 0.995, 0.4)
    cost = Cost(0.001, 2**20)
    return [
        Row(kind, 8, 90, cost, cost, quality),
        Row(kind, 16, 180, Cost(0.002, 4 * 2**20), Cost(0.004, 8 * 2**20)),
    ]


def test_the_table_has_a_line_for_each_row_and_says_how_costs_grow():
    lines = table(Report([*rows("full"), *rows("linear")], {})).splitlines()
    cells = ["full", "8", "90", "87.7", "99.5%", "1.0", "1.0", "1.0", "1.0"]
    assert lines[1].split() == cells
    assert lines[4].split() == ["linear", "16", "180", "2.0", "4.0", "4.0", "8.0"]
    assert any("right in 40.0%" in line for line in lines)
    assert lines[-1].startswith("linear: ") and lines[-1].endswith("1.00, its memory 2.00")


@pytest.mark.parametrize("shown", [slice(None), slice(1, None)])
def test_the_chart_draws_what_is_measured_and_no_more(shown):
    drawing = ElementTree.fromstring(chart(Report(rows("local")[shown], {})))
    lines = [e for e in drawing.iter() if e.tag.endswith("polyline")]
    assert {e.get("class") for e in lines} == {"line local"}
    assert len(lines) == (4 if shown == slice(None) else 2)


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--lengths", "2,8"], 2, "--lengths 2: must be from 3 to 1,000"),
        (["--lengths", "8,1001"], 2, "--lengths 1001: must be from 3 to 1,000"),
        (["--longest", "1001"], 2, "--longest 1001: must be from 3 to 1,000"),
        (["--documents", "100001"], 2, "--documents 100001: must be from 1 to 100,000"),
        (["--tested", "100001"], 2, "--tested 100001: must be from 1 to 100,000"),
        (["--encoders", "full,fast"], 2, "'fast' is none of full, local, linear"),
        (["--longest", "2"], 2, "--longest"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_training(tmp_path, capsys, flags, code, said):
    assert bench(tmp_path / "new", *flags) == code
    assert said in capsys.readouterr().err and not (tmp_path / "new").exists()


def test_the_encoders_may_be_named_in_any_order(tmp_path, monkeypatch):
    orders = []
    monkeypatch.setattr("tfm.cli.bench_documents.carry_out", orders.append)
    monkeypatch.setattr(benchmark, "measure_kind", lambda kind, *_: rows(kind))
    assert bench(tmp_path, "--encoders", "linear,full") == 0
    assert [order.directory.name for order in orders] == ["full", "linear"]
    made = [tmp_path / "full" / "tokenizer.model"]  # by the first one that is trained
    assert [order.tokenizer for order in orders] == [None, *made]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "linear"])
def test_a_network_of_either_form_learns_documents(tmp_path, capsys, kind):
    short = ["--documents", 2000, "--longest", 4, "--lengths", 3, "--tested", 60, "--steps", 250]
    short += ["--set", "training.batch_tokens=1024", "--set", "training.warmup_steps=50"]
    flags = [*short, "--set", "model.window=8", "--encoders", kind, "-o", tmp_path, "--json"]
    assert main(["bench", "documents", "--device", "cpu", *map(str, flags)]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["bleu"] > 75 and row["pronouns_right"] > 0.85 > row["pronouns_by_guessing"] + 0.3
    if kind == "local":  # what linear attention adds is not needed for documents as short as these
        assert assess_blind(tmp_path / kind).bleu < row["bleu"] - 25


def assess_blind(directory: Path) -> benchmark.Quality:
    """Translate with an encoder whose local attention carries nothing."""
    plan = resolve(
        "auto", device=torch.device("cpu"), dtype=torch.float32, dropout=0.0, training=False,
        encoder_forms=("local",), window=8,
    )  # fmt: skip
    blind = replace(plan, other=Choice(lambda q, k, v, **_: torch.zeros_like(q), "nothing"))
    translator = Translator(load_model(directory), blind)
    return assess(translator, builtin_documents("test", 60, sentences=3))
