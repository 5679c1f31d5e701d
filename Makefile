# Two commands: `make demo` and `make test`. Each sets up .venv by itself; nothing but Python 3.11, pip and make is needed.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test check format docs clean

demo: .venv/.installed
	$(BIN)/tandemrank demo

test: check
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

check: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/.installed-dev
	$(BIN)/python docs/build_site.py

$(BIN)/python:
	$(PYTHON) -m venv .venv

# The stamps are renewed when the pins or the project's own requirements change, so a second call does not install.
.venv/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable .
	touch $@

.venv/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[dev,docs,serve,cluster,bucket,peers,export,gym]'
	touch $@ .venv/.installed

clean:
	rm -rf .venv
