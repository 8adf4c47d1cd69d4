# `make` lists the targets. Everything is installed into .venv; nothing outside this folder is touched. BIN=folder uses
# the programs of another environment, with a torch of its own, say: then nothing is installed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SWEEP  ?= jobs/sweep.yaml
# The grids of the class answer the questions of the default sweep, and belong to no study; `equal` measures turns.
SWEEPS ?= $(filter-out jobs/sweeps/cs336_%.yaml jobs/sweeps/equal.yaml,$(wildcard jobs/sweeps/*.yaml))
RESULTS ?= results
RECORDED := build/recording
RECORDINGS := build/recordings
DEVICE ?= cuda
STRICT ?=
ALLOW_MIX ?=
HASHED_TORCH ?=
UPGRADE ?=
UV     := uv==0.13.9
# Python compiles a module when it is first imported, and most of what is installed never is.
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# What requirements/ locks is installed first, by hash; then this project, which must find all it needs there.
LOCKED := $(PIP) --require-hashes
INSTALL_LOCKED = $(LOCKED) --no-deps --requirement requirements/$(1).txt
EDITABLE := $(PIP) --no-build-isolation --editable

TO_HTML := $(BIN)/python -m profiler_job.analysis.site.build_html
IN_PARALLEL := $(BIN)/python -m pytest -q --numprocesses auto --dist worksteal --durations 10 --durations-min 1

READING := $(addprefix tests/,reference capture recording metrics comparison)

ifeq ($(origin BIN),file)
TO_REPORT  := $(VENV)/report.stamp
TO_MEASURE := $(VENV)/gpu.stamp
TO_DEVELOP := $(VENV)/dev.stamp
TO_READ    := $(VENV)/read.stamp
endif

unexport PYTHONDONTWRITEBYTECODE # images set it; here hundreds of processes would each compile all modules again

.DEFAULT_GOAL := help
.PHONY: help setup run test test-long test-all test-reading test-image test-chaos serve sweep studies ingest merge publish-data report site offline
.PHONY: check-public test-faults notebook screenshots pictures image pin-base-image sbom lock bench lint format clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

# The files share no package (tests/test_pins.py), so both are installed at the same time.
$(VENV)/report.stamp: pyproject.toml requirements/base.txt requirements/site.txt | $(VENV)/bin/python
	@echo "installing what the report needs into $(VENV)"
	$(call INSTALL_LOCKED,base) & base=$$!; $(call INSTALL_LOCKED,site); code=$$?; wait $$base && exit $$code
	$(EDITABLE) . --no-deps
	@touch $@

# torch by its version alone, unless HASHED_TORCH=1 asks for PyPI's, with its CUDA libraries: which build of it pip finds
# (CUDA 13, an older CUDA, CPU only) depends on the indexes it knows here, and each build has other hashes.
$(VENV)/gpu.stamp: $(VENV)/report.stamp requirements/gpu.txt requirements/torch.txt
	@echo "installing torch into $(VENV) (on Linux with its CUDA libraries: some gigabytes)"
	$(LOCKED) --requirement requirements/gpu.txt $(if $(HASHED_TORCH),--requirement requirements/torch.txt)
	$(EDITABLE) '.[gpu]'
	@touch $@

$(VENV)/dev.stamp: $(VENV)/gpu.stamp requirements/hf.txt requirements/dev.txt
	$(LOCKED) --requirement requirements/hf.txt --requirement requirements/dev.txt
	@touch $@

$(VENV)/read.stamp: $(VENV)/report.stamp requirements/gpu.txt requirements/hf.txt requirements/dev.txt
	$(LOCKED) $(addprefix --requirement requirements/,gpu.txt hf.txt dev.txt)
	@touch $@

setup: $(TO_REPORT) ## Set up what the commands for your own scripts and captures need, and measure nothing

run: $(TO_REPORT) ## The main job: sweep on a GPU with nsys, elsewhere render the shipped recording; site in build/html
	@if command -v nsys >/dev/null && nvidia-smi -L >/dev/null 2>&1; then \
	  $(MAKE) --no-print-directory sweep ingest && $(MAKE) --no-print-directory site RECORDING=$(RECORDED); \
	else \
	  echo "No GPU with nsys here: nothing is measured, the recording in site/data is rendered."; \
	  $(MAKE) --no-print-directory site; \
	fi
	@echo "The report: build/html/index.html"

sweep: $(TO_MEASURE) ## Measure the sweep (SWEEP=file) into results/; can be stopped and started again
	$(BIN)/python -m profiler_job doctor --sweep $(SWEEP) --results $(RESULTS) --device $(DEVICE)
	$(BIN)/python -m profiler_job run --sweep $(SWEEP) --results $(RESULTS) --device $(DEVICE) $(if $(ALLOW_MIX),--allow-mix)

studies: $(TO_MEASURE) ## Measure and ingest every sweep of jobs/sweeps, or SWEEPS="precision compile", one after another
	$(BIN)/python -m profiler_job doctor --results $(RESULTS) --device $(DEVICE)
	@failed=; for sweep in $(foreach one,$(SWEEPS),$(or $(wildcard jobs/sweeps/$(one).yaml),$(one))); do \
	  echo "$$sweep:"; code=0; name=$$(awk '/^name:/ {print $$2}' $$sweep); \
	  $(BIN)/python -m profiler_job run --sweep $$sweep --results $(RESULTS) --device $(DEVICE) $(if $(ALLOW_MIX),--allow-mix) \
	    || code=$$?; \
	  $(BIN)/python -m profiler_job ingest $(RESULTS)/$$name --out $(RECORDINGS)/$$name && test $$code = 0 \
	    || failed="$$failed $$sweep"; \
	  test $$code -lt 128 || break; \
	done; test -z "$$failed" || { echo "not whole:$$failed" >&2; exit 1; }

ingest: $(TO_REPORT) ## Turn results/ into a recording in build/recording
	$(BIN)/python -m profiler_job ingest $(RESULTS)/$$(awk '/^name:/ {print $$2}' $(SWEEP)) --out $(RECORDED)

report: $(TO_REPORT) ## Write the report's pages from the recording (RECORDING=folder, STRICT=1 to fail on a breach)
	$(BIN)/python -m profiler_job site --pages-only $(if $(RECORDING),--recording $(RECORDING)) $(if $(STRICT),--strict)

site: report ## Build the site into build/html
	$(TO_HTML) build --strict --quiet

serve: report ## Preview the site on http://127.0.0.1:8000; a change of template, code or data writes the pages anew
	@$(BIN)/watchmedo shell-command --recursive --drop --ignore-directories \
	  --patterns '**/*.py;**/*.md;**/*.html;**/*.toml;**/*.json;**/*.parquet' \
	  --command '$(BIN)/python -m profiler_job site --pages-only $(if $(RECORDING),--recording $(RECORDING))' analysis site/data & \
	watcher=$$!; trap "kill $$watcher" EXIT INT TERM; $(TO_HTML) serve $(SERVE)

test: $(TO_DEVELOP) ## Set up everything and run the tests, the long ones left out (minutes)
	$(IN_PARALLEL)

test-long: $(TO_DEVELOP) ## Run the long tests, too: a browser (of SITE=folder if built), Slurm, fuzzing, kills
	$(IN_PARALLEL) --long $(if $(SITE),--site=$(abspath $(SITE)))

test-all: $(TO_DEVELOP) ## Run all tests, those of minutes and every page in the browser, too: what runs every night
	$(IN_PARALLEL) --all $(if $(SITE),--site=$(abspath $(SITE)))

test-reading: $(TO_READ) ## Run the tests of what reads captures and recordings, without torch
	$(IN_PARALLEL) $(READING)

merge: $(TO_REPORT) ## Join the shards below SHARDS=folder into MERGED=results/merged
	$(BIN)/python -m profiler_job merge $(SHARDS) --out $(or $(MERGED),results/merged) $(if $(ALLOW_MIX),--allow-mix)

publish-data: $(TO_REPORT) ## Show FROM=results or a recording, ask, and put it into site/data as NAME=name (STUDY=again)
	$(BIN)/python -m profiler_job publish-data $(FROM) $(NAME) $(if $(STUDY),--study $(STUDY)) $(if $(YES),--yes)

check-public: $(TO_REPORT) ## Look for anything private and for broken links in site/data and build/html
	$(BIN)/python -m profiler_job check-public site/data build/html

offline: report ## Build the variant that works from a folder, into build/offline
	$(TO_HTML) build --strict --quiet -f mkdocs.offline.yml

notebook: $(TO_REPORT) ## Run the notebooks again and store their outputs
	$(BIN)/jupyter nbconvert --to notebook --execute --inplace --ExecutePreprocessor.record_timing=False \
	  site/notebooks/*.ipynb

image: ## Build the container image
	DOCKER_BUILDKIT=1 docker build -f docker/Dockerfile -t profiler-job \
	  --build-arg PROFILER_COMMIT=$$(git rev-parse --short=12 HEAD) .

pin-base-image: ## Write the digest that the base image's tag has now into the Dockerfile (needs docker with buildx)
	docker/pin_base_image.sh

sbom: ## Write what the image is made of to build/sbom.cdx.json (CycloneDX)
	@mkdir -p build
	docker run --rm --network=none --entrypoint cat profiler-job /usr/share/profiler-job/sbom.cdx.json >build/sbom.cdx.json
	@echo "The software bill of materials: build/sbom.cdx.json"

lock: ## Write requirements/: all packages with versions and hashes (UPGRADE=1: the newest ones)
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check $(UV)
	PATH="$(CURDIR)/build/lock/bin:$$PATH" UPGRADE=$(UPGRADE) requirements/lock

test-image: $(TO_DEVELOP) ## Build and run the image with a real container engine (ALL=1: Ubuntu's users, too)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -m image -s tests/image $(if $(ALL),--all)

screenshots: $(TO_DEVELOP) ## Take the README's pictures of the report, light and dark
	$(BIN)/python -m tests.browser.screenshots

pictures: $(TO_DEVELOP) ## Take pictures of the site in build/html into build/pictures, to compare before and after a change
	$(BIN)/python -m tests.browser.pictures build/html build/pictures

test-chaos: $(TO_DEVELOP) ## Twenty kill -9 and five SIGTERM over a sweep on the CPU (minutes)
	CHAOS=1 $(BIN)/python -m pytest --all -s tests/jobs/test_chaos.py

test-faults: $(TO_DEVELOP) ## A fault at each change of a file by sweep, ingest and publication (half an hour)
	FAULTS_OUT=site/data/benchmarks/faults.json $(BIN)/python -m pytest --all -s tests/jobs/test_faults.py

bench: $(TO_DEVELOP) ## Measure the reader on generated captures of up to 5 M kernels, and the site
	$(BIN)/python -m tests.bench --out site/data/benchmarks/reader.json
	$(BIN)/python -m tests.bench.site_speed --out site/data/benchmarks/site.json

lint: $(TO_DEVELOP) ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(TO_DEVELOP) ## Apply style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove what was built, not what was measured
	rm -rf build $(VENV)
