# make help lists the targets. Everything lands in .venv and build/; `make clean` removes both.
#
#   PYTHON=python3.12 make test     another interpreter (3.10 or newer)
#   make demo PAIR=qwen2.5-coder    the real pair instead of the small one
PYTHON ?= python3
PAIR ?= smollm2
WERROR ?= OFF

VENV := .venv
BIN := $(VENV)/bin
LOGS := build/logs
STAMP := build/stamps/environment
STEP := bash tools/step.sh
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help demo test bench lint sanitize native native-tests wheel-aarch64 test-aarch64 clean

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-13s %s\n", $$1, $$2}'

demo: ## a small drafter and its target over an emulated WAN, cloud only against AceSpec (PAIR=smollm2|qwen2.5-coder)
	@$(PYTHON) -m tools.demo --pair $(PAIR) --headline
	@$(MAKE) --no-print-directory native ENVIRONMENT='[1/5] environment' NATIVE='[2/5] native core'
	@$(BIN)/python -m tools.demo --pair $(PAIR) --staged

test: ## lint, the C++ tests, the Python tests
	@$(MAKE) --no-print-directory native-tests ENVIRONMENT='[1/5] environment' NATIVE='[2/5] native core'
	@$(MAKE) --no-print-directory lint LINT='[3/5] lint'
	@$(STEP) '[4/5] C++ tests' $(LOGS)/ctest.log ctest --preset dev
	@echo '[5/5] Python tests'
	@$(BIN)/python -m pytest -m 'not slow' -q

bench: native ## the figures of docs/benchmarks.md (minutes to hours: see there)
	@$(BIN)/python -m tools.bench.identity --pair $(PAIR)
	@$(BIN)/python -m tools.bench.acceptance --pair $(PAIR)
	@$(BIN)/python -m tools.bench.memory --pair $(PAIR)
	@$(BIN)/python -m tools.bench.recovery

LINT ?= lint
lint: $(STAMP) ## ruff, mypy --strict, clang-format
	@$(STEP) '$(LINT)' $(LOGS)/lint.log bash tools/lint.sh

sanitize: $(STAMP) ## the C++ tests under the address and undefined-behaviour sanitizers
	@$(STEP) 'sanitizers: build' $(LOGS)/sanitize-build.log bash tools/native.sh asan-ubsan -DACESPEC_BUILD_TESTS=ON
	@$(STEP) 'sanitizers: C++ tests' $(LOGS)/sanitize.log ctest --preset asan-ubsan

NATIVE ?= native core
native: $(STAMP) ## the native module, next to the Python sources
	@$(STEP) '$(NATIVE)' $(LOGS)/native.log bash tools/native.sh dev -DACESPEC_WERROR=$(WERROR) -DACESPEC_BUILD_TESTS=OFF

native-tests: $(STAMP)
	@$(STEP) '$(NATIVE)' $(LOGS)/native.log bash tools/native.sh dev -DACESPEC_WERROR=$(WERROR) -DACESPEC_BUILD_TESTS=ON

ENVIRONMENT ?= environment
$(STAMP): pyproject.toml constraints.txt tools/environment.sh
	@$(STEP) '$(ENVIRONMENT)' $(LOGS)/environment.log bash tools/environment.sh '$(PYTHON)' $(VENV)
	@mkdir -p $(@D) && touch $@

CROSS := build/cross
ROOT_STAMP := build/stamps/aarch64-root
ROOT ?= [1/2] aarch64 root
WHEEL ?= [2/2] aarch64 wheel
wheel-aarch64: $(STAMP) $(ROOT_STAMP) ## the wheel for aarch64 Linux, in dist/ (see docs/devices.md)
	@$(STEP) '$(WHEEL)' $(LOGS)/aarch64-wheel.log env WERROR=$(WERROR) bash tools/cross/wheel.sh dist

$(ROOT_STAMP): tools/cross/root.sh
	@$(STEP) '$(ROOT)' $(LOGS)/aarch64-root.log bash tools/cross/root.sh $(CROSS)/root
	@mkdir -p $(@D) && touch $@

test-aarch64: ## the C++ and the Python tests on emulated aarch64 (see docs/devices.md)
	@$(MAKE) --no-print-directory wheel-aarch64 ROOT='[1/6] aarch64 root' WHEEL='[2/6] aarch64 wheel'
	@$(STEP) '[3/6] aarch64 packages' $(LOGS)/aarch64-site.log bash tools/cross/site.sh $(CROSS)/site dist/acespec_edge-*-manylinux_*_aarch64.whl
	@$(STEP) '[4/6] C++ tests: build' $(LOGS)/aarch64-build.log bash tools/native.sh aarch64 -DACESPEC_WERROR=$(WERROR)
	@$(STEP) '[5/6] C++ tests' $(LOGS)/aarch64-ctest.log ctest --preset aarch64
	@echo '[6/6] Python tests'
	@bash tools/cross/test.sh $(TESTS)

clean: ## remove the environment, every build and the native module
	rm -rf $(VENV) build python/acespec_edge/_core.*.so
