# Every target makes what it needs: `make demo` in a fresh clone is enough.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
DEMO := runs/demo

.PHONY: help install demo test test-slow lint types gpu-check clean

help:
	@echo "make install     .venv with tfm (editable) and the development tools"
	@echo "make demo        train, translate, score and explain on the built-in corpus"
	@echo "make test        the tests; test-slow: those that take minutes"
	@echo "make lint types  ruff; mypy"
	@echo "make gpu-check   tests and measurements on an NVIDIA GPU, into runs/gpu-check"
	@echo "make clean       remove .venv, build files and caches; runs/ stays"

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(INSTALLED)
	@$(BIN)/tfm demo -o $(DEMO)

test: $(INSTALLED)
	$(BIN)/python -m pytest --durations=10

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Type checkers do not follow the import hook of an editable install: the link shows them `tfm`.
types: $(INSTALLED)
	@mkdir -p build/types && ln -sfn ../.. build/types/tfm
	$(BIN)/mypy

gpu-check: $(INSTALLED)
	$(BIN)/python tests/gpu_check.py

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
