# plm-embed: `make demo` shows it at work, `make test` proves it, `make help` lists the rest.

# Any Python from 3.11 on.
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
# where the small, CPU-only build of torch lies; if it is out of reach, the default index's build does
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
CORES ?= 2
# side by side in suites that wait much of their time: tests, and clusters of the SLURM suite
WAITING ?= 4
CLUSTERS ?= 3
GPU_PYTHON ?= python3
GPU_CHECK ?=
WHEELS = $(wildcard wheels/*.whl)
# not the whole folder, where users of a clone keep scripts of their own
CODE = benchmarks docs executors packaging tests workflow
CAMPAIGNS = tests/workflow/test_campaigns.py tests/workflow/test_troubled_campaigns.py
PBS_CAMPAIGN = tests/pbs/test_pbs_campaigns.py::test_one_gpu_per_job
PBS_OPTIONS =

BIN := .venv/bin
# pip would compile some ten thousand files, of which few are ever used: Python keeps what it compiles, even in containers
# that tell it not to
PIP := $(BIN)/python -m pip install --quiet --quiet --no-compile
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo docs pictures coverage test test-all test-rest test-unit test-campaigns test-workflow test-clusters test-pbs test-slurm lint packages release-notes gpu-check gpu-wheels slurm-packages clean help

# The demo shows the workflow, not the speed: .venv has no torch for GPUs, and the sample needs none.
demo: export CUDA_VISIBLE_DEVICES = -1
demo: .venv/installed  ## plan and run the whole workflow on config/config.yaml (as shipped: the sample), on the CPU, sum it up
	@echo "On the CPU, also where there is a GPU: the sample is small. docs/laptop.md has the installation for GPUs."
	@test -e results/esm2_t3_untrained/report.html || $(BIN)/python -m plm_embed plan
	@$(BIN)/snakemake --cores $(CORES) --quiet host rules
	@$(BIN)/python -m plm_embed summary results

test: lint test-unit test-campaigns  ## what anyone can check in some minutes: style, units, whole campaigns, PBS in part

test-all: test test-rest  ## everything, a real SLURM included

# What runs on clusters waits much of its time, so the other suite runs beside it.
test-rest: .venv/installed-test  ## the suites that `make test` leaves out
	$(MAKE) --no-print-directory --output-sync=target --jobs=2 test-workflow test-clusters

test-unit: .venv/installed-test
	$(BIN)/python -m pytest -m "not workflow and not slurm" -n $(CORES)

coverage: .venv/installed-test  ## the unit tests again, which then take half as long again, and which lines they leave out
	$(BIN)/python -m pytest -m "not workflow and not slurm" -n $(CORES) --cov --cov-fail-under=90

test-campaigns: .venv/installed-test
	$(BIN)/python -m pytest $(CAMPAIGNS) $(PBS_CAMPAIGN) -n $(CORES) --dist worksteal

test-clusters:
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target --keep-going test-slurm test-pbs PBS_OPTIONS=--deselect=$(PBS_CAMPAIGN)

# the longest files first, so that none of them is alone at the end; of the units those that have such tests: each
# process imports all files
test-workflow: .venv/installed-test  ## whole jobs and whole runs
	$(BIN)/python -m pytest tests/workflow $$(grep -rl --include='*.py' mark.workflow tests/unit) -m "workflow and not slurm" $(addprefix --ignore=,$(CAMPAIGNS)) --durations=5 -n $(WAITING) --dist loadfile --no-loadscope-reorder

test-pbs: .venv/installed-test  ## the executor plugin and campaigns, on a stand-in for PBS or a real one (executors/pbs/README.md)
	$(BIN)/python -m pytest executors/pbs/tests -n $(WAITING)
	$(BIN)/python -m pytest tests/pbs $(PBS_OPTIONS) --durations=5 -n $(WAITING) --dist worksteal

# exit code 5: no test was collected, because SLURM is not here; the suite says so, and in CI it fails instead
test-slurm: .venv/installed-test  ## the executor plugin, and campaigns on a real SLURM on this machine (as root, after make slurm-packages)
	$(BIN)/python -m pytest executors/slurm/tests -n $(WAITING) --dist worksteal
	$(BIN)/python -m pytest tests/slurm --durations=5 -n $(CLUSTERS) --dist loadfile || test $$? = 5

# Nothing of .venv: the machine's own python3 has the torch that fits its driver, and numpy. What else it lacks comes as wheels.
gpu-check:  ## on a machine with a GPU, without a network: a verdict in under 9 minutes
	@test -z "$(WHEELS)" || $(GPU_PYTHON) -m pip install --quiet --no-index --no-deps --upgrade --target wheels/site $(WHEELS)
	@PYTHONPATH=$(CURDIR)/workflow/src:$(CURDIR)/wheels/site $(GPU_PYTHON) benchmarks/gpu $(GPU_CHECK)

gpu-wheels:  ## fetch the wheels that gpu-check's machine may lack, for the same Python
	grep -hiE '^(backports.zstd|click|fair-esm|h5py|iniconfig|msgspec|packaging|pluggy|pyarrow|pygments|pytest|pyyaml|safetensors|threadpoolctl|tokenizers)==' \
	  requirements/base.txt requirements/test.txt | xargs $(GPU_PYTHON) -m pip download --quiet --no-deps --dest wheels

lint: .venv/installed-test  ## format, style, types, Snakemake's own linter, the Dockerfile
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	cd executors/pbs && ../../$(BIN)/mypy --strict src
	cd executors/slurm && ../../$(BIN)/mypy --strict src
	$(BIN)/snakefmt --line-length 100 --check Snakefile workflow
	$(BIN)/snakemake --lint
	$(BIN)/hadolint containers/Dockerfile
	@! grep -rnE '"""(What|Of|Whether|Those|How) ' --include=*.py $(CODE) || { echo "Begin the docstring with a noun or a verb."; exit 1; }

# The same bytes from the same commit: setuptools gives files in archives the time at which it made them.
packages: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
packages:  ## build wheels and source archives of the three packages into dist/
	rm -rf dist && $(PYTHON) -m venv .venv-build && .venv-build/bin/python -m pip install --quiet build twine check-wheel-contents
	for folder in . executors/pbs executors/slurm; do .venv-build/bin/python -m build --outdir dist $$folder || exit 1; done
	for archive in dist/*.tar.gz; do \
	  rm -rf dist/unpacked && mkdir dist/unpacked && tar -xzf $$archive -C dist/unpacked && \
	  tar -C dist/unpacked --sort=name --mtime=@$$SOURCE_DATE_EPOCH --owner=0 --group=0 --numeric-owner --mode=go=rX,u+rw -c $$(ls dist/unpacked) | \
	    gzip -9 --no-name > $$archive || exit 1; done; rm -rf dist/unpacked
	.venv-build/bin/twine check --strict dist/* && .venv-build/bin/check-wheel-contents dist/*.whl
	cd dist && sha256sum *

release-notes: TAG ?= $(shell git describe --tags --exact-match 2>/dev/null || echo untagged)
release-notes:  ## print the notes of the release TAG, with the SHA-256 of the wheels in dist/
	@$(PYTHON) packaging/release_notes.py $(TAG)

docs: .venv/installed-docs  ## build the manual as a site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

pictures: .venv/installed  ## make the pictures of the manual anew, from a demo of its own; needs chromium
	$(BIN)/python docs/pictures.py

# policy-rc.d keeps Debian from starting the services; one that is there already stays
slurm-packages: POLICY := /usr/sbin/policy-rc.d
slurm-packages:  ## install what the SLURM suite needs (Debian and Ubuntu, as root)
	test -e $(POLICY) || { printf '#!/bin/sh\nexit 101\n# plm-embed\n' > $(POLICY); chmod 755 $(POLICY); }
	apt-get -o DPkg::Lock::Timeout=300 -qq update && DEBIAN_FRONTEND=noninteractive \
	  apt-get -o DPkg::Lock::Timeout=300 -qq -y --no-install-recommends install \
	  slurmctld slurmd slurm-client munge slurmdbd mariadb-server; status=$$?; \
	  ! grep -q plm-embed $(POLICY) || rm $(POLICY); exit $$status

clean:  ## remove .venv and the tools' caches; results and weights stay
	rm -rf .venv .venv-build dist build .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis workflow/src/*.egg-info

help:
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

# A stamp is newer than the pins that it stands for only when pip has finished.
.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "plm-embed needs Python 3.11 or later as $(PYTHON); name another one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	  echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install $$(basename $(PYTHON))-venv"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python requirements/base.txt requirements/cpu.txt pyproject.toml $(wildcard executors/*/pyproject.toml)
	@echo "Installing torch, Snakemake and the rest of requirements/cpu.txt into .venv, once: half a minute or more."
	@$(PIP) --no-deps --requirement requirements/base.txt & others=$$!; torch=$$(grep ^torch= requirements/cpu.txt); \
	$(PIP) --no-deps --index-url $(TORCH_INDEX) --retries 0 --timeout 15 $$torch || \
	  { echo "no torch from $(TORCH_INDEX): taking the one of the default index"; $(PIP) --no-deps $$torch; }; wait $$others
	@$(PIP) --requirement requirements/cpu.txt  # what torch needs on this machine
	@$(PIP) --no-deps --no-build-isolation --editable . --editable executors/pbs --editable executors/slurm
	@touch $@

.venv/installed-test: .venv/installed requirements/test.txt
	@$(PIP) --requirement requirements/test.txt
	@touch $@

.venv/installed-docs: .venv/installed requirements/docs.txt
	@$(PIP) --requirement requirements/docs.txt
	@touch $@
