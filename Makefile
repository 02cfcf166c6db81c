# Everything a developer or CI runs. Each target sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Where torch's default wheel is a CUDA build, e.g. make venv TORCH_INDEX_URL=<index of CPU wheels>.
TORCH_INDEX_URL ?=
ARGS ?=

.PHONY: venv peers demo test lint format soak clean
venv: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX_URL),$(BIN)/pip install -q -c constraints.txt torch --index-url $(TORCH_INDEX_URL))
	$(BIN)/pip install -q -c constraints.txt -e '.[demo,test]'
	touch $@

# What `headrace bench load` is measured beside, in an environment of its own, and nanio, a store that checks signatures
# at little cost. They never meet our own environment: the bench starts this one's python.
PEERS := .venv-peers
peers: $(PEERS)/.installed

$(PEERS)/.installed: Makefile constraints.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(if $(TORCH_INDEX_URL),$(PEERS)/bin/pip install -q -c constraints.txt torch --index-url $(TORCH_INDEX_URL))
	$(PEERS)/bin/pip install -q -c constraints.txt torch 'runai-model-streamer[s3]~=0.17.0' obstore awscli safetensors \
	  numpy nanio
	touch $@

demo: venv
	$(BIN)/headrace demo $(ARGS)

test: venv
	$(BIN)/python -m pytest tests -n 2 --dist loadfile $(ARGS)

# The long run: tests marked `soak`, and the property tests with thousands of random examples instead of the fixed
# slice (tests/profiles.py). What was found is found again with the seed that is printed: make soak SEED=...
SEED ?= $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
soak: venv
	HEADRACE_SOAK=1 $(BIN)/python -m pytest tests -m "soak or property" --timeout=0 --hypothesis-seed=$(SEED) $(ARGS)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(PEERS) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
