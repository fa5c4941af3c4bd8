"""docs/mathematics.md: each row has its formula, its line of code and its test, all true."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "mathematics.md").read_text("utf-8")
IMPLEMENTED = range(1, 21)  # rows 21 and 22 only contrast


def script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows() -> dict[int, str]:
    parts = re.split(r"^### Row (\d+) · ", PAGE, flags=re.MULTILINE)
    return {int(number): text for number, text in zip(parts[1::2], parts[2::2], strict=True)}


def named_tests(page: str) -> list[str]:
    return re.findall(r"`(test_\w+)`", page)


def all_tests() -> set[str]:
    texts = (path.read_text("utf-8") for path in (ROOT / "tests").glob("test_*.py"))
    return {name for text in texts for name in re.findall(r"^def (test_\w+)\(", text, re.M)}


def test_every_row_is_there_with_a_formula():
    assert list(rows()) == [*range(1, 23)]
    assert [row for row in range(1, 22) if "$$" not in rows()[row]] == []


@pytest.mark.parametrize("row", IMPLEMENTED)
def test_every_row_quotes_the_line_of_code_where_it_stands(row):
    refresh = script("refresh")
    assert refresh.LINK.search(rows()[row]), f"row {row} has no link to code"
    assert refresh.refreshed(rows()[row]) == rows()[row], "run python docs/refresh.py"


def test_every_line_about_code_is_a_link_that_is_checked():
    assert len(script("refresh").LINK.findall(PAGE)) == PAGE.count("- Code:")


def test_a_link_to_code_that_is_gone_is_found():
    lost = "[model/layers.py, line 1](../model/layers.py#L1): `no such code`"
    with pytest.raises(LookupError, match="model/layers.py: no line with `no such code`"):
        script("refresh").refreshed(lost)


@pytest.mark.parametrize("row", IMPLEMENTED)
def test_every_row_has_tests_that_bear_its_number(row):
    named = named_tests(rows()[row])
    assert any(name.startswith(f"test_row_{row:02d}_") for name in named)
    assert set(named) <= all_tests()


def test_every_test_of_a_row_is_on_the_page():
    assert {name for name in all_tests() if name.startswith("test_row_")} <= set(named_tests(PAGE))


def test_every_figure_is_what_the_command_makes():
    figures = script("figures")
    named = set(re.findall(r"\]\(figures/([\w-]+)\.svg\)", PAGE))
    assert named == set(figures.FIGURES)
    for name, draw in figures.FIGURES.items():
        drawn = (ROOT / "docs" / "figures" / f"{name}.svg").read_text("utf-8")
        assert draw() == drawn, "run python docs/figures.py"
