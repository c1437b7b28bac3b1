PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TOOLS := $(VENV)/.tools

.PHONY: venv demo test lint clean

venv: $(READY) $(TOOLS)

# torch first and pinned: where it is on hand as a CPU build, pip then has no reason to fetch CUDA packages
$(READY): pyproject.toml constraints.txt integrations/langchain/pyproject.toml integrations/llama-index/pyproject.toml
	@echo "Building $(VENV): a few minutes and about 2.5 GB the first time"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e . -e integrations/langchain -e integrations/llama-index
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[demo]"
	touch $@

$(TOOLS): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[demo,test,lint]"
	touch $@

demo: $(READY)
	$(BIN)/ragbias demo

test: venv
	$(BIN)/python -m pytest

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) demo-output
