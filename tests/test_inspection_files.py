"""The files of an attention report: their schema, that they are closed, safe and reproducible."""

import io
import json
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from rich.cells import cell_len

from tfm.data.corpus import Pair
from tfm.data.errors import UserError
from tfm.data.settings import TokenizerSettings
from tfm.data.tokenizer import Tokenizer, train_tokenizer
from tfm.model.inspection import terminal
from tfm.model.inspection.export import PICTURES, render, write_report
from tfm.model.inspection.grid import grid, pool
from tfm.model.inspection.heatmap import heatmap
from tfm.model.inspection.labels import cells, shorten
from tfm.model.inspection.png import png
from tfm.model.inspection.report import AttentionReport, Selection, inspect_pair
from tfm.model.inspection.views import views
from tfm.model.settings import ModelSettings
from tfm.model.transformer import Transformer

SOURCE, TARGET = "A man rides a red bike.", "Ein Mann fährt ein rotes Fahrrad."
HOSTILE = "</text><b>&\"']]><!-- 猫 \x00\x1b[31m <script>alert(1)</script>"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer([Pair(SOURCE, TARGET)], TokenizerSettings(vocab_size=310))


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Transformer:
    torch.manual_seed(4)
    settings = ModelSettings(d_model=32, d_ff=32, heads=2, encoder_layers=1, decoder_layers=2)
    size = tokenizer.source_size
    return Transformer(settings, source_vocab=size, target_vocab=size, joint=True).eval()


@pytest.fixture(scope="module")
def report(model: Transformer, tokenizer: Tokenizer) -> AttentionReport:
    return inspect_pair(model, tokenizer, SOURCE, TARGET, backend="sdpa")


@pytest.fixture(scope="module")
def hostile(model: Transformer, tokenizer: Tokenizer) -> AttentionReport:
    return inspect_pair(model, tokenizer, HOSTILE, f"Ziel {HOSTILE}")


def test_npz_holds_all_maps_and_what_they_are_of(report: AttentionReport) -> None:
    found = np.load(io.BytesIO(render(report, ["npz"])["attention.npz"]), allow_pickle=False)
    for key, weights in (
        ("enc_self", report.capture.encoder),
        ("dec_self", report.capture.decoder),
        ("cross", report.capture.cross),
    ):
        assert found[key].dtype == np.float32
        np.testing.assert_array_equal(found[key], weights)
    S, T = len(report.source.ids), len(report.target.ids)
    assert found["src_ids"].tolist() == list(report.source.ids)
    assert found["tgt_ids"].tolist() == list(report.target.ids)
    assert found["src_word"].shape == (S,) and found["src_word"][-1] == -1
    assert found["tgt_word"].shape == found["tgt_log_prob"].shape == (T,)
    assert json.loads(str(found["meta"]))["schema"] == "tfm.attention/1"


def test_json_is_of_use_on_its_own(report: AttentionReport) -> None:
    document = json.loads(render(report, ["npz", "json"])["attention.json"])
    assert document["schema"] == "tfm.attention/1" and document["maps"] == "attention.npz"
    assert document["source"]["text"] == SOURCE and document["target"]["text"] == TARGET
    assert document["source"]["words"] == ["A", "man", "rides", "a", "red", "bike", "."]
    assert document["target"]["inputs"][0] == "<s>"
    assert len(document["target"]["log_probabilities"]) == len(document["target"]["pieces"])
    assert document["selection"] == {"layer": 2, "head": "mean"}
    assert document["verification"]["passed"] and document["backend"] == "sdpa"
    assert re.fullmatch(r"\d+-\d+( \d+-\d+)*", document["alignment"]["pharaoh"])
    words = document["cross_words"]
    assert words["rows"][-1] == words["columns"][-1] == "</s>"
    maps = np.array(words["mean_of_heads"])
    assert maps.shape == (2, len(words["rows"]), len(words["columns"]))
    np.testing.assert_allclose(maps.sum(-1), 1, atol=1e-4)
    shown = [piece.replace("\u2581", " ").strip() for piece in document["source"]["pieces"]]
    for name, (start, end) in list(zip(shown, document["source"]["offsets"], strict=True))[:-1]:
        assert not name or SOURCE[start:end].strip() == name


def test_json_without_npz_names_none(report: AttentionReport) -> None:
    assert json.loads(render(report, ["json"])["attention.json"])["maps"] is None


def test_equal_reports_give_equal_bytes(
    model: Transformer, tokenizer: Tokenizer, report: AttentionReport
) -> None:
    again = inspect_pair(model, tokenizer, SOURCE, TARGET, backend="sdpa")
    first, second = (render(each, ["npz", "json", "svg"]) for each in (report, again))
    assert first == second
    with zipfile.ZipFile(io.BytesIO(first["attention.npz"])) as file:
        assert {info.date_time[0] for info in file.infolist()} == {1980}  # no clock in it


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_closed_and_text_in_them_is_text(hostile: AttentionReport, name: str) -> None:
    content = render(hostile, ["svg"])[f"{name}.svg"].decode()
    root = ElementTree.fromstring(content)
    outside = content.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|//|@import|url\((?!#)|href|<script|<image|<foreign", outside)
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= {
        *("svg", "title", "desc", "style", "rect", "text", "g", "path", "pattern"),
        *("linearGradient", "stop"),
    }


def test_hostile_words_are_shown_whole(hostile: AttentionReport) -> None:
    root = ElementTree.fromstring(render(hostile, ["svg"])["cross.svg"])
    labels = [element.text for element in root.iter(f"{SVG}text")]
    for word in ("<", "text", "&", "猫", "script", "</s>"):
        assert word in labels
    written = render(hostile, ["json"])["attention.json"].decode()
    assert json.loads(written)["source"]["text"] == HOSTILE


def test_each_cell_says_what_it_is(report: AttentionReport) -> None:
    root = ElementTree.fromstring(render(report, ["svg"])["cross.svg"])
    titles = [element.text for element in root.findall(f"{SVG}rect/{SVG}title")]
    value = report.selected[2, 2]
    assert f"fährt → rides: {value:.1%}" in titles
    assert len(titles) == report.selected.size
    assert root.get("role") == "img" and root.find(f"{SVG}title") is not None


def opacities(svg: str) -> list[float]:
    return [float(x) for x in re.findall(r'fill-opacity="([^"]*)"', svg)]


def test_ink_is_the_value_on_a_fixed_scale() -> None:
    weights = np.array([[0.1, 0.3], [0.2, 0.0]], np.float32)
    drawn = heatmap(weights, ["a", "b"], ["c", "d"], title="t", caption="c")
    assert opacities(drawn) == [0.1, 0.3, 0.2, 0.0]  # not stretched to the largest value
    assert opacities(grid(weights[None, None], ["a", "b"], ["c", "d"], title="t", caption="c")) == [
        0.1,
        0.2,
        0.3,
    ]


def test_long_sentences_are_bounded_and_the_picture_says_so() -> None:
    many = [f"w{i}" for i in range(200)]
    weights = np.full((200, 200), 1 / 200, np.float32)
    large = heatmap(weights, many, many, title="t", caption="All.")
    assert "first 48 of 200 rows" in large and ">w47<" in large and ">w48<" not in large
    small = grid(np.stack([[weights] * 8] * 6), many, many, title="t", caption="All.")
    assert "200 x 200 is reduced to at most 64" in small.replace("\n", " ")
    assert len(small) < 1 << 20


def test_pooling_keeps_the_largest_of_neighbours() -> None:
    weights = np.zeros((1, 1, 10, 7), np.float32)
    weights[0, 0, 9, 3] = 0.7
    assert pool(weights, 4).shape == (1, 1, 4, 4)
    assert pool(weights, 4)[0, 0, 3].max() == np.float32(0.7)
    assert pool(weights, 10) is weights


def test_png_is_drawn_without_a_display(hostile: AttentionReport) -> None:
    pytest.importorskip("matplotlib")
    one, _, many, _ = views(hostile)
    assert png(many).startswith(b"\x89PNG\r\n")
    assert png(one).startswith(b"\x89PNG\r\n")


def test_png_too_is_the_same_every_time(report: AttentionReport) -> None:
    pytest.importorskip("matplotlib")
    view = views(report)[0]
    assert png(view) == png(view)


def test_png_without_matplotlib_says_what_to_install(
    report: AttentionReport, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install matplotlib"):
        write_report(report, tmp_path / "new", formats=["svg", "png"])
    assert not (tmp_path / "new").exists()


def test_a_report_replaces_an_older_one_whole(report: AttentionReport, tmp_path: Path) -> None:
    directory = tmp_path / "a" / "report"
    first = write_report(report, directory)
    assert sorted(directory.iterdir()) == sorted(first) and len(first) == 6
    (directory / ".tfm-1-0.tmp").write_bytes(b"what a kill in the midst of writing leaves")
    second = write_report(report, directory, formats=["json"])
    assert sorted(directory.iterdir()) == sorted(second) == [directory / "attention.json"]


@pytest.mark.parametrize("kind", ["someone's directory", "a file"])
def test_other_files_are_never_touched(report: AttentionReport, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "place"
    if kind == "a file":
        place.write_text("mine")
    else:
        place.mkdir()
        (place / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match="place"):
        write_report(report, place)
    left = place if kind == "a file" else place / "thesis.tex"
    assert left.read_text() == "mine"
    assert kind == "a file" or list(place.iterdir()) == [left]


@pytest.mark.parametrize("width", [30, 60, 120])
def test_the_terminal_map_shows_every_word_in_columns(report: AttentionReport, width: int) -> None:
    lines = terminal.attention_map(report, width=width).splitlines()
    headers = [line.split() for line in lines if line.startswith("   ")]
    assert [word for header in headers for word in header] == report.source.labels
    rows = [line.split()[0] for line in lines[3 : 3 + len(report.target.labels)]]
    assert rows == report.target.labels
    assert all(cell_len(line) <= max(width, 40) for line in lines[1:])


def test_shades_follow_the_shares(report: AttentionReport) -> None:
    cross = np.zeros_like(report.capture.cross)
    cross[..., 0] = 1  # every piece looks at the first source piece alone
    sharp = replace(report, capture=replace(report.capture, cross=cross), selection=Selection(1))
    for line in terminal.attention_map(sharp).splitlines()[3:]:
        assert line.endswith("100% A") and line.count("█") == 2
        assert not re.search("[░▒▓]", line)


@pytest.mark.parametrize("text", ["Mädchen", "猫が好き。", "e\u0301", "a\u200bb", "👍", "ﾊﾝｶｸ", ""])
def test_width_is_what_terminals_give_to_text(text: str) -> None:
    assert cells(text) == cell_len(text)
    for limit in range(1, 9):
        assert cells(shorten(text, limit)) <= limit
        assert (shorten(text, limit) == text) == (cells(text) <= limit)


def test_wide_characters_keep_columns_straight(hostile: AttentionReport) -> None:
    lines = terminal.attention_map(hostile, width=400).splitlines()[3:]
    ends = {cell_len(line[: line.rindex("% ")]) for line in lines}
    assert len(ends) == 1


def test_text_cannot_steer_the_terminal(hostile: AttentionReport) -> None:
    shown = terminal.attention_map(hostile) + terminal.alignment_text(hostile)
    assert not set(shown) & {"\x1b", "\x00"}


def test_the_check_is_told_in_one_line(report: AttentionReport) -> None:
    line = terminal.verification_text(report)
    assert "checked against sdpa in float32" in line and "\n" not in line
    assert f"{report.capture.verification.largest:.0e}" in line


def test_alignment_is_told_in_words(report: AttentionReport) -> None:
    pairs: list[Any] = terminal.alignment_text(report).split("  ")
    assert [pair.rpartition("-")[2] for pair in pairs] == report.target.word_texts
