# SPDX-License-Identifier: Apache-2.0
# Development commands: every check is one target, and every target does its own set-up. `make help` lists them.
#
# Stamp files in .tools/stamps record each set-up step: a step runs again only when its inputs have changed. Package
# indexes, proxies and certificates come from the environment (PIP_*, UV_*, CARGO_*, GOPROXY); nothing here overrides them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

# An empty HOME is normal in CI. The tools need an existing HOME for their caches.
ifeq ($(strip $(HOME)),)
export HOME := $(CURDIR)/.tools/home
endif

# rustup's proxies look for toolchains under $HOME. If they were installed under another HOME, the toolchains
# are beside the proxies: .../.cargo/bin/cargo and .../.rustup.
ifndef RUSTUP_HOME
ifeq ($(wildcard $(HOME)/.rustup/toolchains/*),)
CARGO_PROXY := $(shell command -v cargo)
RUSTUP_BESIDE := $(abspath $(dir $(CARGO_PROXY))../../.rustup)
ifneq ($(and $(CARGO_PROXY),$(wildcard $(RUSTUP_BESIDE)/toolchains/*)),)
export RUSTUP_HOME := $(RUSTUP_BESIDE)
endif
endif
endif

# In CI, property tests always use the same seed (hypothesis detects CI by itself). Local runs use a new seed each time.
ifdef CI
export PROPTEST_RNG_SEED ?= 20261121
endif

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TOOLS := .tools
STAMPS := $(TOOLS)/stamps
VERSITYGW := v1.8.0
AZURITE := 3.35.0
FAKE_GCS := v1.56.1
HADOOP := 3.4.1
RCLONE := v1.76.0
S5CMD := v2.3.0
MC := v0.0.0-20250313080218-cf909e1063a9
# Tests that only `make test-peers` runs.
LEFT_OUT := and not needs_tf and not needs_adapters and not needs_pool and not needs_specs and not needs_array_peers and not needs_ray_spark
SUDO := $(shell test "$$(id -u)" = 0 || echo sudo)
# uv and maturin find the environment only by these variables, so an environment active in the shell has no effect.
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export PATH := $(CURDIR)/$(BIN):$(PATH)
unexport CONDA_PREFIX

RUST_SOURCES := $(shell find crates -name '*.rs' -o -name Cargo.toml -o -name '*.proto' 2>/dev/null) Cargo.toml Cargo.lock
comma := ,
SAY = @echo "set-up: $(1)"

# $(call apt,COMMANDS THAT MUST BE FOUND,DEBIAN PACKAGES,WHAT IS INSTALLED)
define apt
@type $(1) > /dev/null 2>&1 || { \
		echo "set-up: $(3)"; \
		export DEBIAN_FRONTEND=noninteractive; \
		install=($(SUDO) apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends $(2)); \
		"$${install[@]}" > $(TOOLS)/apt.log 2>&1 || { $(SUDO) apt-get update -qq >> $(TOOLS)/apt.log 2>&1; "$${install[@]}" >> $(TOOLS)/apt.log 2>&1; } || { cat $(TOOLS)/apt.log; exit 1; }; }
endef

.PHONY: help
help: ## List the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'

# ---------------------------------------------------------------- main targets

.PHONY: demo
demo: setup ## Run the demo of the whole path on real input, then print the report's path (ARGS="..." for more options)
	@$(BIN)/penstock demo $(ARGS)

.PHONY: test
test: setup setup-peers static test-rust test-python ## The checks that every commit must pass: set-up, guards, Rust tests, Python tests

.PHONY: test-system
test-system: test-system-parallel test-system-alone ## Tests of whole systems: Slurm, HDFS, MPI, ssh, ranks, pools, kills, browser, documentation pages, and of measurements

.PHONY: test-system-parallel
test-system-parallel: setup setup-peers ## Those of them that may run two at a time
	@mkdir -p $(TOOLS)
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile --durations=30 -m "system and not alone $(LEFT_OUT)" 2>&1 | tee $(TOOLS)/test-system.log

.PHONY: test-system-alone
test-system-alone: setup setup-peers ## Those of them that measure this machine, one at a time
	@mkdir -p $(TOOLS)
	@$(BIN)/python -m pytest -q --durations=30 -m "system and alone $(LEFT_OUT)" 2>&1 | tee $(TOOLS)/test-system-alone.log

.PHONY: check
check: setup static test-rust-unit test-python-fast ## Fast checks: formats, lints, types, guards, unit tests

.PHONY: bench
bench: setup ## Run the micro benches that guard against regressions; rows go to runs/bench
	$(call apt,pigz taskset,pigz util-linux,pigz from Debian$(comma) to compare with)
	@for bench in benches/bench_*.py; do echo "== $$bench"; $(BIN)/python "$$bench"; done

.PHONY: fmt
fmt: setup ## Format Rust and Python in place
	@cargo fmt --all
	@$(BIN)/ruff check --quiet --fix-only . && $(BIN)/ruff format --quiet .

.PHONY: clean
clean: ## Remove everything that was built or installed here (sources and runs/ stay)
	rm -rf target $(VENV) $(TOOLS) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find python -name '*.so' -delete

# ---------------------------------------------------------------- one command per check

.PHONY: static
static: setup ## All checks except tests; two at a time, as most of them use one core
	@$(MAKE) --no-print-directory --output-sync=target --jobs=2 clippy stubtest guards rustfmt ruff imports generated

.PHONY: rustfmt
rustfmt: ## Rust formatting
	@cargo fmt --all --check

.PHONY: clippy
clippy: $(STAMPS)/nasm ## Rust lints, warnings are errors
	@cargo clippy --workspace --all-targets --locked --quiet -- -D warnings

.PHONY: ruff
ruff: setup ## Python lints and formatting
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .

.PHONY: mypy
mypy: setup ## Python types, strict
	@$(BIN)/mypy --no-error-summary

.PHONY: stubtest
stubtest: setup mypy ## The hand-written stub against the compiled module; after mypy, which fails while it runs
	@$(BIN)/python -m mypy.stubtest penstock._native --concise

.PHONY: imports
imports: setup ## Import rules between the Python packages
	@$(BIN)/lint-imports --no-logo

.PHONY: guards
guards: setup ## Repository rules: crate dependencies, import cycles, licence lines, file lengths, leaks, public names, skipped tests
	@$(BIN)/python tools/guard.py

.PHONY: generated
generated: setup ## Check that generated files are up to date
	@$(BIN)/python tools/generate_cli_reference.py --check
	@$(BIN)/python tools/generate_decisions_index.py --check
	@$(BIN)/python tools/generate_house_table.py --check

.PHONY: generate
generate: setup ## Write the generated files
	@$(BIN)/python tools/generate_cli_reference.py
	@$(BIN)/python tools/generate_decisions_index.py
	@$(BIN)/python tools/generate_house_table.py

.PHONY: test-rust
test-rust: setup-peers $(STAMPS)/nasm ## All Rust tests
	@cargo test --workspace --locked --quiet

.PHONY: test-rust-unit
test-rust-unit: $(STAMPS)/nasm ## Rust unit tests
	@cargo test --workspace --locked --quiet --lib

.PHONY: test-python
test-python: setup setup-peers ## Python tests except those of whole systems; three at a time, as they wait half of their time
	@mkdir -p $(TOOLS)
	@$(BIN)/python -m pytest -q -n 3 --dist loadfile --durations=30 -m "not system $(LEFT_OUT)" 2>&1 | tee $(TOOLS)/test-python.log

.PHONY: test-python-fast
test-python-fast: setup ## Fast Python tests that need neither root nor a server
	@$(BIN)/python -m pytest -q -n 3 --dist loadfile -m "not system and not slow and not needs_server and not needs_s3 and not needs_torch and not needs_root $(LEFT_OUT)"

.PHONY: test-peers
test-peers: setup setup-peers setup-peers-clients $(STAMPS)/tf $(STAMPS)/adapters $(STAMPS)/specs $(STAMPS)/array-peers $(STAMPS)/ray-spark ## Tests too large for `make test`: TensorFlow, JAX, Lightning, Accelerate, transformers, Ray, Spark, pools that lose hosts, S3 clients, WebDataset, validators of job specifications and MLPerf logs, MDIO
	@# TensorFlow emits warnings at import, which must not fail the tests.
	@PYTHONPATH=python $(TOOLS)/tf/bin/python -m pytest -q -W default -m needs_tf $$(grep -rl --include='test_*.py' 'mark.needs_tf$$' tests)
	@$(BIN)/python -m pytest -q -m needs_pool $$(grep -rl --include='test_*.py' 'mark.needs_pool$$' tests)
	@$(BIN)/python -m pytest -q -m needs_specs $$(grep -rl --include='test_*.py' 'mark.needs_specs$$' tests)
	@$(BIN)/python -m pytest -q -m needs_array_peers $$(grep -rl --include='test_*.py' 'mark.needs_array_peers$$' tests)
	@$(BIN)/python -m pytest -q -m needs_ray_spark $$(grep -rl --include='test_*.py' 'mark.needs_ray_spark$$' tests)
	@$(BIN)/python -m pytest -q -m needs_adapters $$(grep -rl --include='test_*.py' 'mark.needs_adapters$$' tests)

# ---------------------------------------------------------------- set-up

.PHONY: setup
setup: $(STAMPS)/venv $(STAMPS)/native ## The Python environment and the compiled core

.PHONY: setup-peers
setup-peers: $(STAMPS)/versitygw-$(VERSITYGW) $(STAMPS)/azurite-$(AZURITE) $(STAMPS)/fake-gcs-$(FAKE_GCS) $(STAMPS)/hadoop-$(HADOOP) $(STAMPS)/faultfs $(STAMPS)/chromium $(STAMPS)/launchers-5 ## Real stores (S3, Azure, GCS, HDFS), launchers (Slurm, MPI, ssh) and a browser to test against

.PHONY: setup-peers-clients
setup-peers-clients: $(STAMPS)/rclone-$(RCLONE) $(STAMPS)/s5cmd-$(S5CMD) $(STAMPS)/mc-$(MC) $(STAMPS)/mounts ## Third-party S3 clients, which the tests run against the emulator

.PHONY: setup-peers-stage
setup-peers-stage: setup setup-peers $(STAMPS)/rclone-$(RCLONE) $(STAMPS)/s5cmd-$(S5CMD) $(STAMPS)/awscrt $(STAMPS)/isal ## The copiers that benches/peers/stage compares with Penstock

.PHONY: setup-peers-measure
setup-peers-measure: setup $(STAMPS)/dlio ## DLIO, which benches/peers/measure compares with Penstock

.PHONY: changelog
changelog: $(STAMPS)/venv ## Move the fragments of docs/changes into CHANGELOG.md (VERSION=0.2.0)
	@$(BIN)/towncrier build --yes --version $(VERSION)

.PHONY: lock
lock: $(STAMPS)/venv ## Pin the environments again at the newest versions (LOCK_ARGS= keeps the pinned versions)
	@$(BIN)/uv pip compile pyproject.toml --extra demo --group dev -o requirements/dev.txt $(LOCK_FLAGS)
	@$(BIN)/uv pip compile pyproject.toml --group tf -o requirements/tf.txt $(LOCK_FLAGS)
	@$(BIN)/uv pip compile --group specs -o requirements/specs.txt $(LOCK_FLAGS)
	@$(BIN)/uv pip compile --group array-peers -o requirements/array-peers.txt $(LOCK_FLAGS)
LOCK_ARGS ?= --upgrade
LOCK_FLAGS = --quiet --python-version 3.11 --universal --no-emit-index-url --no-annotate --no-header $(LOCK_ARGS)

$(BIN)/python:
	$(call SAY,$(VENV) from $$($(PYTHON) --version 2>&1): everything Python is installed there and nowhere else)
	@rm -rf $(VENV) && $(PYTHON) -m venv $(VENV)

$(STAMPS):
	@mkdir -p $@

$(STAMPS)/venv: requirements/dev.txt | $(BIN)/python $(STAMPS)
	$(call SAY,pinned Python packages; torch brings CUDA along: ~3 GB to fetch$(comma) 5.7 GB on disk)
	@# Byte code is compiled now. If PYTHONDONTWRITEBYTECODE is set, every import of torch would otherwise compile 2,000 files.
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet "$$(grep '^uv==' requirements/dev.txt)"
	@$(BIN)/uv pip install --quiet --compile-bytecode -r requirements/dev.txt
	@touch $@

# libjpeg-turbo is compiled from source. cmake builds it, and nasm assembles its SIMD code, without which decoding is
# several times slower. Both must be installed before the first cargo command.
$(STAMPS)/nasm: | $(STAMPS)
	$(call apt,nasm cmake,nasm cmake,nasm and cmake from Debian$(comma) to build libjpeg-turbo (~30 MB))
	@touch $@

$(STAMPS)/native: $(RUST_SOURCES) pyproject.toml $(STAMPS)/venv | $(STAMPS)/nasm
	$(call SAY,the Rust core in release mode$(comma) some minutes on two cores the first time)
	@$(BIN)/maturin develop --release --locked --uv --quiet > $(TOOLS)/maturin.log 2>&1 || { cat $(TOOLS)/maturin.log; exit 1; }
	@touch $@

$(STAMPS)/versitygw-$(VERSITYGW): | $(STAMPS)
	$(call SAY,versitygw $(VERSITYGW)$(comma) the strict S3 peer of the store tests$(comma) about a minute to compile)
	@GOBIN="$(CURDIR)/$(TOOLS)/bin" go install github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW) 2> $(TOOLS)/go.log || { cat $(TOOLS)/go.log; exit 1; }
	@touch $@

$(STAMPS)/azurite-$(AZURITE): | $(STAMPS)
	$(call SAY,Azurite $(AZURITE)$(comma) the Azure peer of the store tests$(comma) 190 MB from npm)
	@mkdir -p $(TOOLS)/azurite
	@npm install --silent --no-audit --no-fund --prefix $(TOOLS)/azurite azurite@$(AZURITE) > $(TOOLS)/npm.log 2>&1 || { cat $(TOOLS)/npm.log; exit 1; }
	@touch $@

$(STAMPS)/fake-gcs-$(FAKE_GCS): | $(STAMPS)
	$(call SAY,fake-gcs-server $(FAKE_GCS)$(comma) the Google peer of the store tests$(comma) about a minute to compile)
	@GOBIN="$(CURDIR)/$(TOOLS)/bin" go install github.com/fsouza/fake-gcs-server@$(FAKE_GCS) 2> $(TOOLS)/go.log || { cat $(TOOLS)/go.log; exit 1; }
	@touch $@

$(STAMPS)/hadoop-$(HADOOP): python/penstock/engines/_shared/hadoop.pom.xml | $(STAMPS)
	$(call SAY,Hadoop $(HADOOP)$(comma) the HDFS peer of the store tests$(comma) 91 MB of jars from Maven)
	$(call apt,java mvn,default-jre-headless maven,Java and Maven from Debian (~150 MB))
	@rm -rf $(TOOLS)/hadoop
	@mvn -q -B -f python/penstock/engines/_shared/hadoop.pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$(CURDIR)/$(TOOLS)/hadoop/lib" > $(TOOLS)/mvn.log 2>&1 || { cat $(TOOLS)/mvn.log; exit 1; }
	@touch $@

$(STAMPS)/faultfs: $(wildcard benches/peers/stage/faultfs/*) | $(STAMPS)
	$(call SAY,faultfs$(comma) the failing disk of the stage tests$(comma) some seconds to compile)
	@cd benches/peers/stage/faultfs && go build -o "$(CURDIR)/$(TOOLS)/bin/faultfs" . 2> "$(CURDIR)/$(TOOLS)/go.log" || { cat "$(CURDIR)/$(TOOLS)/go.log"; exit 1; }
	@touch $@

$(STAMPS)/rclone-$(RCLONE): | $(STAMPS)
	$(call SAY,rclone $(RCLONE)$(comma) some minutes to compile)
	@GOBIN="$(CURDIR)/$(TOOLS)/bin" go install github.com/rclone/rclone@$(RCLONE) 2> $(TOOLS)/go.log || { cat $(TOOLS)/go.log; exit 1; }
	@touch $@

$(STAMPS)/s5cmd-$(S5CMD): | $(STAMPS)
	$(call SAY,s5cmd $(S5CMD)$(comma) a minute to compile)
	@# Built in the module cache: `go install` also requests a list of versions, which not every proxy serves.
	@folder=$$(go mod download -json github.com/peak/s5cmd/v2@$(S5CMD) | sed -n 's/.*"Dir": "\(.*\)".*/\1/p') && cd "$$folder" && \
		GOFLAGS=-mod=mod go build -o "$(CURDIR)/$(TOOLS)/bin/s5cmd" . 2> "$(CURDIR)/$(TOOLS)/go.log" || { cat "$(CURDIR)/$(TOOLS)/go.log"; exit 1; }
	@touch $@

$(STAMPS)/mc-$(MC): | $(STAMPS)
	$(call SAY,mc of MinIO$(comma) some minutes to compile)
	@GOBIN="$(CURDIR)/$(TOOLS)/bin" go install github.com/minio/mc@$(MC) 2> $(TOOLS)/go.log || { cat $(TOOLS)/go.log; exit 1; }
	@touch $@

$(STAMPS)/awscrt: $(STAMPS)/venv
	$(call SAY,the AWS CLI with its CRT client in an environment of its own)
	@$(PYTHON) -m venv --without-pip --clear $(TOOLS)/awscrt
	@VIRTUAL_ENV="$(CURDIR)/$(TOOLS)/awscrt" $(BIN)/uv pip install --quiet awscli awscrt
	@touch $@

$(STAMPS)/isal: | $(STAMPS)
	$(call apt,igzip,isal,igzip from Debian (isal))
	@touch $@

$(STAMPS)/chromium: | $(STAMPS)
	$(call apt,chromium,chromium,Chromium from Debian$(comma) to open the report as a reader would (~100 MB))
	@touch $@

$(STAMPS)/mounts: | $(STAMPS)
	$(call apt,mfsmaster s3fs,moosefs-master moosefs-chunkserver moosefs-client moosefs-cli s3fs fuse3,MooseFS$(comma) s3fs and FUSE from Debian$(comma) a pool and a bucket to mount (~5 MB))
	@touch $@

LAUNCHERS := openmpi-bin mpich slurmctld slurmd slurm-client munge iproute2 openssl openssh-server openssh-client procps charliecloud-runtime tcsh lammps
$(STAMPS)/launchers-5: | $(STAMPS)
	$(call apt,mpirun.openmpi mpiexec.hydra slurmctld slurmd srun munged ip openssl sshd ssh-agent pgrep ch-run tcsh lmp,$(LAUNCHERS),Slurm$(comma) Open MPI$(comma) MPICH$(comma) sshd$(comma) Charliecloud and LAMMPS from Debian$(comma) to launch with (~30 s))
	@touch $@

$(STAMPS)/adapters: requirements/adapters.txt $(STAMPS)/venv
	$(call SAY,JAX$(comma) Lightning$(comma) Accelerate$(comma) transformers$(comma) torchdata$(comma) Grain$(comma) Orbax and WebDataset beside the environment$(comma) in $(TOOLS)/adapters; ~680 MB)
	@rm -rf $(TOOLS)/adapters
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --target $(TOOLS)/adapters --no-deps -r requirements/adapters.txt
	@touch $@

$(STAMPS)/specs: requirements/specs.txt $(STAMPS)/venv
	$(call SAY,the validators of Kubernetes$(comma) Azure ML$(comma) Azure Batch and MLPerf logs in an environment of their own ($(TOOLS)/specs); ~400 MB)
	@$(PYTHON) -m venv --without-pip --clear $(TOOLS)/specs
	@VIRTUAL_ENV="$(CURDIR)/$(TOOLS)/specs" $(BIN)/uv pip install --quiet -r requirements/specs.txt
	@touch $@

$(STAMPS)/array-peers: requirements/array-peers.txt $(STAMPS)/venv
	$(call SAY,MDIO and the models of OSDU records in an environment of its own ($(TOOLS)/array-peers); ~400 MB)
	@$(PYTHON) -m venv --without-pip --clear $(TOOLS)/array-peers
	@VIRTUAL_ENV="$(CURDIR)/$(TOOLS)/array-peers" $(BIN)/uv pip install --quiet -r requirements/array-peers.txt
	@touch $@

$(STAMPS)/ray-spark: requirements/ray-spark.txt $(STAMPS)/venv
	$(call apt,java,default-jre-headless,Java from Debian$(comma) on which Spark runs)
	$(call SAY,Ray and Spark in an environment of their own ($(TOOLS)/ray-spark) with the torch of $(VENV); ~750 MB)
	@$(PYTHON) -m venv --without-pip --clear $(TOOLS)/ray-spark
	@VIRTUAL_ENV="$(CURDIR)/$(TOOLS)/ray-spark" $(BIN)/uv pip install --quiet --compile-bytecode --no-deps -r requirements/ray-spark.txt
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$(echo $(TOOLS)/ray-spark/lib/python3.*/site-packages)/torch-of-venv.pth
	@touch $@

$(STAMPS)/tf: requirements/tf.txt $(STAMPS)/venv
	$(call SAY,TensorFlow in an environment of its own ($(TOOLS)/tf)$(comma) so that its pins bind nobody else; ~1 GB)
	@$(PYTHON) -m venv --without-pip --clear $(TOOLS)/tf
	@VIRTUAL_ENV="$(CURDIR)/$(TOOLS)/tf" $(BIN)/uv pip install --quiet --compile-bytecode -r requirements/tf.txt
	@touch $@

# Installed without its declared dependencies, which include CUDA 11's DALI and TensorFlow for GPUs; neither is used here.
$(STAMPS)/dlio: $(STAMPS)/venv requirements/dlio.txt
	$(call SAY,DLIO in an environment of its own ($(TOOLS)/dlio)$(comma) with TensorFlow and the torch of $(VENV); ~1 GB)
	@$(PYTHON) -m venv --without-pip --clear $(TOOLS)/dlio
	@VIRTUAL_ENV="$(CURDIR)/$(TOOLS)/dlio" $(BIN)/uv pip install --quiet --compile-bytecode --no-deps -r requirements/dlio.txt
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$(echo $(TOOLS)/dlio/lib/python3.*/site-packages)/torch-of-venv.pth
	@touch $@
