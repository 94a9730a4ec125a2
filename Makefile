# The only front door: each target is one line into the package. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.PHONY: help setup lock libraries figures fig11 fig12 trace report examples inputs attention llama-block varlen tritonbench power accuracy timers proton \
        overhead disturbance proof lines inductor tune record claims ttgir doctor test test-kernels test-gpu test-docker test-versions test-newest versions test-lowest mutants \
        dist release check docs image shell docker-fig11 docker-fig12 clean

ifdef KPERF_IN_CONTAINER  # the image's own Python has everything
PYTHON := python
STAMP :=
else
PYTHON := .venv/bin/python
STAMP := .venv/installed
endif
KPERF = $(PYTHON) -m kperf

# The settings that a target takes. Anything else on the command line is refused before something runs, as is a switch
# that is neither 0 nor 1; values go to the shell quoted, OPTIONS word by word, and make expands nothing in them.
takes_fig11 := COSTS OVERRIDE OPTIONS
takes_fig12 := CAUSAL PAPER_MIX FRESH HEAD_DIM DTYPE INPUTS GPUS OPTIONS
takes_docker-fig11 := $(takes_fig11)
takes_docker-fig12 := $(takes_fig12)
takes_trace := SCRIPT OPTIONS
takes_report := FILES OPTIONS
takes_inputs := FRESH GPUS OPTIONS
takes_attention := CAUSAL HEAD_DIM DTYPE INPUTS FRESH OPTIONS
takes_power := CAUSAL FRESH OPTIONS
takes_timers := OPTIONS
takes_lines := OPTIONS
takes_inductor := OPTIONS
takes_record := OPTIONS
takes_tune := FRESH OPTIONS
takes_llama-block := OPTIONS
takes_varlen := OPTIONS
takes_tritonbench := OPTIONS
takes_test := OPTIONS
takes_test-kernels := OPTIONS
takes_test-gpu := OPTIONS
takes_test-docker := OPTIONS
takes_release := VERSION
takes_test-versions := VERSIONS OPTIONS
takes_test-newest := OPTIONS
takes_versions := VERSIONS
takes_test-lowest := OPTIONS
takes_mutants := OPTIONS
# Images set it; each process, and tests start many, would then compile the package and pytest its assertions anew.
unexport PYTHONDONTWRITEBYTECODE
# Make would expand what it exports.
unexport CAUSAL PAPER_MIX FRESH COSTS HEAD_DIM DTYPE INPUTS GPUS OVERRIDE SCRIPT FILES VERSION OPTIONS
TAKEN_BY_ALL := PYTHON KPERF_RESULTS
SWITCHES := CAUSAL PAPER_MIX FRESH COSTS

given := $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
$(foreach goal,$(or $(MAKECMDGOALS),help),\
  $(foreach name,$(filter-out $(TAKEN_BY_ALL) $(takes_$(goal)),$(given)),\
    $(error `make $(goal)` takes no $(name): it takes $(or $(takes_$(goal)),no settings)))\
  $(foreach name,$(filter $(SWITCHES),$(takes_$(goal))),\
    $(if $(filter-out 0 1,$(value $(name))),$(error $(name) is 0 or 1, not $(value $(name))))))

quote = '$(subst ','\'',$(1))'
option = $(if $(value $(1)),$(2) $(call quote,$(value $(1))))
switch = $(if $(filter 1,$(value $(1))),$(2))
words = $(foreach word,$(value OPTIONS),$(call quote,$(word)))
FIG12_OPTIONS = $(call switch,CAUSAL,--causal) $(call option,HEAD_DIM,--head-dim) $(call option,DTYPE,--dtype) \
                $(call option,INPUTS,--inputs) $(call switch,PAPER_MIX,--paper-mix) $(call switch,FRESH,--fresh) \
                $(call option,GPUS,--gpus) $(words)
FIG11_OPTIONS = $(call option,OVERRIDE,--override) $(call switch,COSTS,--costs) $(words)
# The same settings for make inside the container.
pass_on = $(foreach name,$(1),$(if $(value $(name)),$(call quote,$(name)=$(value $(name)))))

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## .venv from requirements/lock.txt, with hashes (5 GB; does nothing when it is current)

.venv/installed: requirements/lock.txt
	@python=$$(for p in python3.12 python3.11 python3; do \
	  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null && echo $$p && break; done); \
	[ -n "$$python" ] || { echo "make setup: Python 3.11 or 3.12 is needed: install one" >&2; exit 2; }; \
	[ -x .venv/bin/pip ] || $$python -m venv .venv || { echo "make setup: python -m venv failed: install python3-venv" >&2; exit 2; }
	@echo "setup: installing the locked wheels into .venv"
	@.venv/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/lock.txt
	@touch $@

resolve := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url
beside := -c requirements/lock.txt $$(sed -n 's/^\([a-z0-9-]*\)==.*/--no-emit-package \1/p' requirements/lock.txt | sort -u)
lock: setup ## resolve requirements/lock.txt, libraries.txt and docs.txt anew (needs uv)
	@sed -n 1p requirements/lock.txt > .lock.part && $(resolve) requirements/all.in >> .lock.part && mv .lock.part requirements/lock.txt
	@for name in libraries docs; do \
	  sed -n 1p requirements/$$name.txt > .lock.part && $(resolve) $(beside) requirements/$$name.in >> .lock.part && \
	  mv .lock.part requirements/$$name.txt || exit; done

libraries: setup ## TileLang, FlashInfer and Numba into .venv, for `make attention` and `make timers` (2 GB)
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/libraries.txt

.venv/site-installed: requirements/docs.txt $(STAMP)
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/docs.txt
	@touch $@

docs: .venv/site-installed ## the pages and the reference as a site, build/site/index.html; a link that leads nowhere fails it
	@$(PYTHON) -m docs.site build/pages && $(PYTHON) -m zensical build --strict --clean

figures: fig11 fig12 ## both figures: measured on a Hopper GPU, else drawn from the recorded runs; then all others that are recorded
	@$(KPERF) figures

fig11: setup ## Fig. 11, inside the kernel; OVERRIDE=FILE traces a TTGIR of yours, COSTS=1 also times other clocks and buffers
	@$(KPERF) fig11 $(FIG11_OPTIONS)

fig12: setup ## Fig. 12, against FA2, FA3, cuDNN and Triton; CAUSAL=1, HEAD_DIM=64, DTYPE=float16, INPUTS=local, PAPER_MIX=1, FRESH=1, GPUS=all|2|0,2
	@$(KPERF) fig12 $(FIG12_OPTIONS)

# An interpreter of the user's own has its own packages.
trace: $(if $(filter command,$(origin PYTHON)),,setup) ## inside the kernels of a script of yours: SCRIPT="script.py its arguments", OPTIONS="--list", PYTHON=yours
	@$(KPERF) trace $(words) $(foreach word,$(value SCRIPT),$(call quote,$(word)))

report: setup ## traced kernels on one HTML page: FILES="kperf-trace" (files or folders), OPTIONS="--out page.html --samples profile.hatchet"
	@$(KPERF) report $(words) $(foreach word,$(value FILES),$(call quote,$(word)))

inputs: setup ## speed over FA3 by kind of inputs (normal, peaked, sink, outliers, jumps ...): measured on a Hopper GPU, else as recorded
	@$(KPERF) inputs $(call switch,FRESH,--fresh) $(call option,GPUS,--gpus) $(words)

attention: setup ## all implementations on your shapes, both passes, time, error, memory: OPTIONS="--batch 1 --n-heads 32 --n-kv-heads 8 --seq-len 4096"
	@$(KPERF) attention $(call switch,CAUSAL,--causal) $(call option,HEAD_DIM,--head-dim) $(call option,DTYPE,--dtype) \
	  $(call option,INPUTS,--inputs) $(call switch,FRESH,--fresh) $(words)

power: setup ## each implementation alone at the power cap: TFLOPS, W, MHz, TFLOPS/W; CAUSAL=1, FRESH=1
	@$(KPERF) power $(call switch,CAUSAL,--causal) $(call switch,FRESH,--fresh) $(words)

examples: setup ## trace every script of examples/; without a GPU lower them, and draw the recorded runs
	@$(KPERF) examples $(words)

llama-block: setup ## a Llama block with our attention in it: equal to torch's; on a Hopper GPU timed interleaved, else as recorded
	@PYTHONPATH=. $(PYTHON) examples/llama_block.py
	@$(KPERF) llama-block $(words)

varlen: setup ## attention over sequences of different lengths beside equal ones: Improved+, FA3, torch; else as recorded
	@$(KPERF) varlen $(words)

tritonbench: setup ## our override and FA2 in meta-pytorch/tritonbench (TRITONBENCH_DIR), on its timers and on ours: do they agree?
	@$(KPERF) tritonbench-compare $(words)

accuracy: setup ## how right our regions are against known cycles and CUPTI, and the models against records
	@$(KPERF) accuracy

timers: setup ## one call under ten timers, y = x * x in five languages; OPTIONS="--ncu FILE" or "--perf-report"
	@$(KPERF) timers $(words)

proton: setup ## Proton over the implementations and SDPA's back ends: TFLOP/s, call trees, their difference
	@$(KPERF) proton

overhead: setup ## what tracing costs, beside the paper's Fig. 13: every recorded kernel, and other ways to record
	@$(KPERF) overhead

disturbance: setup ## what events cost a launch with all CTAs recorded and with sampled ones; more scripts: OPTIONS="script.py"
	@$(KPERF) disturbance $(words)

proof: setup ## does kperf diagnose name the planted faults of the proof set, and what its advice gives; OPTIONS="NAME"
	@$(KPERF) proof $(words)

lines: setup ## samples by line of source from Proton and ncu, and what each profiler costs; OPTIONS="--ncu FILE"
	@$(KPERF) lines $(words)

tune: setup ## tiles, warps, stages of the Triton kernel: pruned by compiling, searched on a GPU; OPTIONS="--exhaustive"
	@$(KPERF) tune $(call switch,FRESH,--fresh) $(words)

inductor: setup ## every kernel that torch.compile makes of a DiT and a Llama block, and its ceiling; OPTIONS="--trace triton_red*"
	@$(KPERF) inductor $(words)

record: setup ## measure anew what results/ holds (81 minutes of an H200); OPTIONS="--minutes 30 --only fig12,power"
	@$(KPERF) record $(words)

claims: setup ## the paper's claims, our numbers with their intervals, a verdict each
	@$(KPERF) claims

ttgir: setup ## generate ttgir/ from the Gluon sources and verify it (no GPU needed)
	@$(KPERF) ttgir

doctor: setup ## what this machine can run, and why not the rest
	@$(KPERF) doctor

# A worker more than there are cores: some tests wait, for processes and for time to pass.
WORKERS := $(shell echo $$(($$(nproc) + 1)))
test: setup ## the tests that need no GPU and no Docker engine, side by side; leaves large kernels to `make test-kernels`
	@$(PYTHON) -m pytest -n $(WORKERS) --dist worksteal -m "not gpu and not docker and not kernels" $(words)

test-kernels: setup ## the tests that compile large kernels, or many: attention's, the proof set, kernels with events, tuning spaces
	@$(PYTHON) -m pytest -n auto --dist worksteal -m "not gpu and not docker and kernels" $(words)

test-gpu: setup ## the tests that need a Hopper GPU
	@$(PYTHON) -m pytest -m gpu $(words)

VERSIONS := 3.7.1 3.8.0 3.9.0
VERSIONED_TESTS := tests/ir/test_printed.py tests/trace/instrument/test_kernels.py tests/trace/analyze/test_decode.py \
                   tests/trace/capture/test_selfcheck.py tests/trace/capture/test_command.py \
                   tests/ir/test_memory.py tests/ir/test_ptxas.py tests/diagnose/test_try.py tests/diagnose/test_races.py
.venv-%/installed: | setup # the locked packages, and another Triton in front of theirs
	@$(PYTHON) -m venv .venv-$*
	@.venv-$*/bin/pip install --quiet --disable-pip-version-check --no-deps triton==$*
	@$(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$(.venv-$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/the-rest.pth
	@touch $@

test-versions: setup $(VERSIONS:%=.venv-%/installed) ## what works with other Tritons, each in an environment of its own; VERSIONS="3.9.0"
	@for version in $(VERSIONS); do echo "Triton $$version"; .venv-$$version/bin/python -m pytest -q -n auto --dist worksteal \
	  -m "not gpu" -p no:cacheprovider $(VERSIONED_TESTS) $(words) || exit; done

test-newest: setup ## the same tests with the newest torch and the Triton that it brings, as a stranger installs them (3 GB)
	@[ -x .venv-newest/bin/pip ] || $(PYTHON) -m venv .venv-newest
	@.venv-newest/bin/pip install --quiet --disable-pip-version-check --upgrade torch '.[bench,plots,report]' hypothesis pytest pytest-timeout pytest-xdist
	@.venv-newest/bin/python -c 'import torch, triton; print(f"torch {torch.__version__}, Triton {triton.__version__}")'
	@.venv-newest/bin/python -m pytest -q -n auto --dist worksteal -m "not gpu" -p no:cacheprovider $(VERSIONED_TESTS) $(words)

versions: setup $(VERSIONS:%=.venv-%/installed) ## compile the examples with each Triton for each target: results/versions.jsonl, docs/support.md (an hour)
	@for python in $(PYTHON) $(VERSIONS:%=.venv-%/bin/python); do nice $$python -m kperf.paper.versions results/versions.jsonl || exit; done
	@$(PYTHON) -m kperf.paper.versions --runs results/versions.jsonl && $(PYTHON) -m kperf.paper.versions --page docs/support.md

test-lowest: setup ## what pyproject.toml says is new enough, installed (needs uv), and the tests that use it
	@$(PYTHON) -m tests.lowest $(words)

test-docker: setup ## the tests that need a Docker engine
	@$(PYTHON) -m pytest -m docker tests/docker $(words)

mutants: setup ## do the tests fail when the program is wrong? The listed changes and a sample; OPTIONS="--sample 300"
	@$(PYTHON) -m tests.mutation $(words)

# docs/words.txt: words that documents and help texts do not use, and what they use in their place. The tables of
# docs/operators.md and of public kernels (`kernel` (owner/name, path)), and the entries of docs/sped_up/, have the words
# of a record.
WORDED := README.md artifact.md CHANGELOG.md CONTRIBUTING.md docs kperf/cli
check: setup ## ruff, ruff format, mypy; spelling and words
	@$(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check . && $(PYTHON) -m mypy
	@$(PYTHON) -m codespell_lib && $(PYTHON) -m codespell_lib -D docs/words.txt --skip docs/operators.md,docs/sped_up --ignore-regex '^\| `[^`]*` \([^ ]*/[^ ]*( [0-9a-f]+)?, .*|`[^`]*`' $(WORDED)
	@$(PYTHON) -m codespell_lib -D docs/words.txt --ignore-regex '^- \*\*(Author|Fault|Advice).*|^.*\. Input: .*|`[^`]*`' docs/sped_up

dist: ## the sdist, the wheel and the lock's bill of materials into dist/, the same bytes twice (needs uv)
	@.ci/dist

release: ## set VERSION in all files that name it, and close CHANGELOG's "Unreleased"; commit, then `make dist`
	@.ci/release $(call quote,$(value VERSION))

image: setup ## build the image `kperf`
	@$(KPERF) image build

shell: setup ## a shell in the image, with the GPUs and ./results
	@$(KPERF) image shell

docker-fig11: setup ## `make fig11` in the image, results into ./results
	@$(KPERF) image run make fig11 $(call pass_on,$(takes_fig11))

docker-fig12: setup ## `make fig12` in the image, results into ./results
	@$(KPERF) image run make fig12 $(call pass_on,$(takes_fig12))

clean: ## remove .venv and the tools' caches; results stay
	@rm -rf .venv .venv-* build .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
