# The only front door: each target is one line into the package. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.PHONY: help setup lock figures fig11 fig12 power claims ttgir test test-gpu test-docker mutants check image shell \
        docker-fig11 docker-fig12 doctor clean

ifdef KPERF_IN_CONTAINER  # the image's own Python has everything
PYTHON := python
STAMP :=
else
PYTHON := .venv/bin/python
STAMP := .venv/installed
endif
KPERF = $(PYTHON) -m kperf
# $(call flag,NAME,--option): the option, unless NAME is empty or 0
flag = $(if $(filter-out 0,$($(1))),$(2))
FIG12_OPTIONS = $(call flag,CAUSAL,--causal) $(if $(HEAD_DIM),--head-dim $(HEAD_DIM)) $(if $(DTYPE),--dtype $(DTYPE)) \
                $(call flag,PAPER_MIX,--paper-mix) $(call flag,FRESH,--fresh) $(OPTIONS)
FIG11_OPTIONS = $(if $(OVERRIDE),--override "$(OVERRIDE)") $(call flag,COSTS,--costs) $(OPTIONS)
# The same settings for make inside the container.
PASS_ON = $(foreach name,CAUSAL HEAD_DIM DTYPE PAPER_MIX FRESH COSTS OVERRIDE OPTIONS,$(if $($(name)),"$(name)=$($(name))"))

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## .venv from requirements/lock.txt, with hashes (5 GB; does nothing when it is current)

.venv/installed: requirements/lock.txt
	@python=$$(for p in python3.12 python3.11 python3; do \
	  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null && echo $$p && break; done); \
	[ -n "$$python" ] || { echo "make setup: Python 3.11 or 3.12 is needed: install one" >&2; exit 2; }; \
	[ -x .venv/bin/pip ] || $$python -m venv .venv || { echo "make setup: python -m venv failed: install python3-venv" >&2; exit 2; }
	@echo "setup: installing the locked wheels into .venv"
	@.venv/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/lock.txt
	@touch $@

lock: setup ## resolve requirements/lock.txt anew from all.in (needs uv)
	@sed -n 1p requirements/lock.txt > .lock.part && uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-emit-index-url requirements/all.in >> .lock.part && mv .lock.part requirements/lock.txt

figures: fig11 fig12 ## both figures: measured on a Hopper GPU, else drawn from the recorded runs

fig11: setup ## Fig. 11, inside the kernel; OVERRIDE=FILE traces a TTGIR of yours, COSTS=1 what records cost
	@$(KPERF) fig11 $(FIG11_OPTIONS)

fig12: setup ## Fig. 12, against FA2, FA3, cuDNN and Triton; CAUSAL=1, HEAD_DIM=64, DTYPE=float16, PAPER_MIX=1, FRESH=1
	@$(KPERF) fig12 $(FIG12_OPTIONS)

power: setup ## each implementation alone at the power cap: TFLOPS, W, MHz, TFLOPS/W; CAUSAL=1
	@$(KPERF) power $(call flag,CAUSAL,--causal) $(OPTIONS)

claims: setup ## the paper's claims, our numbers with their intervals, a verdict each
	@$(KPERF) claims

ttgir: setup ## generate ttgir/ from the Gluon sources and verify it (no GPU needed)
	@$(KPERF) ttgir

doctor: setup ## what this machine can run, and why not the rest
	@$(KPERF) doctor

test: setup ## all tests that need no GPU and no Docker engine, a worker a core
	@$(PYTHON) -m pytest -n auto --dist worksteal -m "not gpu and not docker" $(OPTIONS)

test-gpu: setup ## the tests that need a Hopper GPU
	@$(PYTHON) -m pytest -m gpu $(OPTIONS)

test-docker: setup ## the tests that need a Docker engine
	@$(PYTHON) -m pytest -m docker $(OPTIONS)

mutants: setup ## do the tests fail when the program is wrong? The listed changes and a sample; OPTIONS="--sample 300"
	@$(PYTHON) -m tests.mutation $(OPTIONS)

check: setup ## ruff, ruff format, mypy
	@$(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check . && $(PYTHON) -m mypy

image: setup ## build the image `kperf`
	@$(KPERF) image build

shell: setup ## a shell in the image, with the GPUs and ./results
	@$(KPERF) image shell

docker-fig11: setup ## `make fig11` in the image, results into ./results
	@$(KPERF) image run make fig11 $(PASS_ON)

docker-fig12: setup ## `make fig12` in the image, results into ./results
	@$(KPERF) image run make fig12 $(PASS_ON)

clean: ## remove .venv and the tools' caches; results stay
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
