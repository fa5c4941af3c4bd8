"""What is installed is what stands in the tree, and imports point one way: cli, model, data."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
FOLDERS = ("cli", "model", "data")


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Yield the names of the modules that a file imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides its direction"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_listed_packages_are_the_folders() -> None:
    """A folder that is not listed works when installed with -e and is missing otherwise."""
    holding = {path.parent for folder in FOLDERS for path in modules(folder)} | {ROOT / "configs"}
    found = sorted("tfm." + ".".join(folder.relative_to(ROOT).parts) for folder in holding)
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == found


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_typed(folder: str) -> None:
    assert (ROOT / folder / "py.typed").exists()


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [("data", {"tfm.model", "tfm.cli", "torch"}), ("model", {"tfm.cli", "typer"})],
)
def test_imports_point_one_way(folder: str, forbidden: set[str]) -> None:
    wrong = [
        (str(path.relative_to(ROOT)), name)
        for path in modules(folder)
        for name in imports(path)
        if any(name == other or name.startswith(other + ".") for other in forbidden)
    ]
    assert wrong == []


def test_every_dependency_has_a_tested_version_within_its_bounds() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").lower().replace("_", "-").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    wanted = [Requirement(text) for text in PROJECT["project"]["dependencies"]]
    for extra in PROJECT["project"]["optional-dependencies"].values():
        wanted += [Requirement(text) for text in extra if not text.startswith("tfm[")]
    for requirement in wanted:
        assert requirement.specifier.contains(pins[requirement.name.lower()]), requirement


def test_the_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text("utf-8")
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert PROJECT["project"]["license"] == "Apache-2.0"
