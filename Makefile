# make demo      the comparisons on this machine, creation and pools: tables, build/demo/*.json and *.png
# make test      the core's tests, and the library's in parallel (those for GPUs run where there are GPUs)
# make test-tools  the tests of what measures and of the commands (tests/bench), of processes (tests/process), of the package
#                (tests/packaging) and of the adapter to Ray (tests/ray); make test runs the essential ones of them
# make test-all  all tests, the long ones too: ONNX Runtime's releases and headers, sanitizers, fuzzing, stress, the
#                wheel, and libraries that use onnxruntime
# make test-locks  the Python tests with an extension of their own that checks its locks against the GIL
# make lint      formatting, ruff, mypy, clang-tidy;  make format  applies the formatting
# make docs      the documentation site, in build/site; broken links are errors
# make wheel     an sdist and a repaired wheel in dist/, tried out in an empty environment;  make test-wheel  runs the
#                tests against it there
#
# Everything is set up in a virtual environment and in build/, on the first call; nothing outside is changed but the
# download caches, and ~/.cache/ortmulti, where clang-tidy's results are kept. Variables:
#   VENV=.venv        the virtual environment
#   PYTHON=python3    the interpreter that it is made of (3.11 or newer)
#   RUNTIME=gpu|cpu   which ONNX Runtime is installed; by default the GPU one where there is an NVIDIA driver
#   JOBS=2            compile and lint jobs
#   WORKERS=auto      processes of the library's Python tests: auto is one for each core; 0 runs them in one process
#   GPU_WORKERS=3     the same for GPU tests that measure no memory
#   CHECK_LOCKS=1     an extension that aborts where a thread waits for a lock with the GIL, or for the GIL with a lock
#   TIDY_FILES="..."  the sources that clang-tidy checks; by default all
#   SELECT="bench"    the markers of the Python tests that test-python runs, as pytest's -m
#   TESTS=tests/pool  their folders or files; by default all
#   RELEASES="newest 1.21.1 1.23.2"  the releases of onnxruntime that `make wheel` tries the wheel with
#   PYTHON_READY=1    no virtual environment and no network: PYTHON has the packages that tools/requirements.py prints
#                     (headers: ONNXRUNTIME_INCLUDE_DIR, ORTMULTI_GOOGLETEST_DIR from the environment, where not found)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV ?= .venv
PYTHON ?= python3
JOBS ?= $(shell nproc)
PYTHON_READY ?=
HAS_NVIDIA := $(shell command -v nvidia-smi || ls /dev/nvidiactl 2>/dev/null || /sbin/ldconfig -p 2>/dev/null | grep -m1 libcuda.so.1)
RUNTIME ?= $(if $(HAS_NVIDIA),gpu,cpu)
RELEASES ?= newest 1.21.1 1.23.2
# Wheels are optimized across files. Here that would be a quarter of the build.
CHECK_LOCKS ?=
LOCKS_OPTION := -DORTMULTI_CHECK_LOCKS=$(if $(CHECK_LOCKS),ON,OFF)
CMAKE_OPTIONS := -DORTMULTI_WERROR=ON -DORTMULTI_UNITY=ON -DORTMULTI_LTO=OFF $(LOCKS_OPTION)
ifneq ($(ORTMULTI_GOOGLETEST_DIR),)
CMAKE_OPTIONS += -DORTMULTI_GOOGLETEST_DIR=$(ORTMULTI_GOOGLETEST_DIR)
endif

export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

ifeq ($(PYTHON_READY),)
PY := $(abspath $(VENV))/bin/python
BUILD := build/editable
export PATH := $(abspath $(VENV))/bin:$(PATH)
else
PY := $(PYTHON)
BUILD := build/ready
export PYTHONPATH := $(abspath $(BUILD))/site$(if $(PYTHONPATH),:$(PYTHONPATH))
endif
export BUILD PY

# $(call quietly,NAME,COMMAND): its words go to build/log/NAME.txt. A terminal shows the last line of them, and a failure
# the end of them.
define quietly
@mkdir -p build/log; { $(2); } 2>&1 | tee build/log/$(1).txt | \
  if [[ -t 1 ]]; then awk '{ printf "\r\033[K  %.100s", $$0; fflush() } END { printf "\r\033[K" }'; else cat >/dev/null; fi || \
  { tail -n 30 build/log/$(1).txt; echo "All of it is in build/log/$(1).txt"; exit 1; }
endef

.PHONY: help
help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile

# --- Set-up -----------------------------------------------------------------------------------------------------------

# A folder that was configured with the other value of CHECK_LOCKS is configured again.
define build_library
@grep -q '^ORTMULTI_CHECK_LOCKS:[A-Z]*=$(lastword $(subst =, ,$(LOCKS_OPTION)))$$' $(BUILD)/CMakeCache.txt || \
  cmake -S . -B $(BUILD) $(LOCKS_OPTION) >/dev/null
@cmake --build $(BUILD) --target _core
endef

# `library` builds the extension alone; `build` also the core's tests, and installs what tests and linting need.
.PHONY: library build packages
.NOTPARALLEL:
ifeq ($(PYTHON_READY),)

packages: $(VENV)/.packages

$(VENV)/.library-packages: pyproject.toml tools/requirements.py tools/constraints.txt
	@echo "== Setting up $(VENV) with onnxruntime for the $(RUNTIME)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: set PYTHON=")'
	@[[ -x $(PY) ]] || $(PYTHON) -m venv $(VENV) || { echo "python3-venv is needed (apt-get install python3-venv)"; exit 1; }
	@$(PY) tools/requirements.py bench build $(RUNTIME) >$(VENV)/library-requirements.txt
	$(call quietly,packages,$(PY) -m pip install -r $(VENV)/library-requirements.txt -c tools/constraints.txt)
	@touch $@

$(VENV)/.packages: $(VENV)/.library-packages
	@echo "== Installing what tests and linting need"
	@$(PY) tools/requirements.py dev build $(RUNTIME) >$(VENV)/requirements.txt
	$(call quietly,test-packages,$(PY) -m pip install -r $(VENV)/requirements.txt -c tools/constraints.txt)
	@touch $@

# Editable: Python from python/, the extension from $(BUILD), built once. `library` looks for changes itself; at every
# import it would take time from what the comparison measures.
$(VENV)/.installed: $(VENV)/.library-packages $(if $(wildcard $(BUILD)/CMakeCache.txt),,FORCE)
	@echo "== Building"
	$(call quietly,build,$(PY) -m pip install --no-build-isolation --no-deps -v \
	  $(patsubst -D%,--config-settings=cmake.define.%,$(CMAKE_OPTIONS)) \
	  --config-settings=editable.rebuild=false -e .)
	@touch $@

library: $(VENV)/.installed
	$(build_library)
	@cmake --install $(BUILD) --prefix "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("platlib"))')" >/dev/null

else

packages:

library:
	@[[ -f $(BUILD)/CMakeCache.txt ]] || cmake -S . -B $(BUILD) -DORTMULTI_BUILD_BINDINGS=ON $(CMAKE_OPTIONS) \
	  -DPython_EXECUTABLE="$$($(PY) -c 'import sys; print(sys.executable)')" \
	  -Dpybind11_DIR="$$($(PY) -m pybind11 --cmakedir)"
	$(build_library)
	@rm -rf $(BUILD)/site
	@cmake --install $(BUILD) --prefix $(BUILD)/site >/dev/null
	@cp -rs "$(abspath python/ortmulti)" $(BUILD)/site/

endif

build: packages library
	$(call quietly,configure,grep -q '^ORTMULTI_BUILD_TESTS:BOOL=ON' $(BUILD)/CMakeCache.txt || \
	  cmake -S . -B $(BUILD) $(CMAKE_OPTIONS) -DORTMULTI_BUILD_TESTS=ON)
	@cmake --build $(BUILD)

.PHONY: FORCE
FORCE:

build/test-models: tests/cpp/make_models.py
	@echo "== Making the tests' models"
	@rm -rf $@
	@$(PY) -m tests.cpp.make_models $@
	@touch $@

# --- Demonstration and tests ------------------------------------------------------------------------------------------

# `make test` takes at most 5 minutes on two cores. The other families start many processes, or measure.
FAMILIES := bench or process or packaging or ray
SELECT ?= not slow and (essential or not ($(FAMILIES)))
WORKERS ?= auto
GPU_WORKERS ?= $(if $(filter 0,$(WORKERS)),0,3)

# Of phi3-mini. Without a GPU more layers show nothing else, and take minutes.
LAYERS ?= $(if $(HAS_NVIDIA),32,2)
DEMO_FILES = --json build/demo/$(1).json --plot build/demo/$(1).png --markdown build/demo/$(1).md

.PHONY: demo test test-python test-cpp test-tools test-locks test-all
# Builds only what it runs: neither the tests nor GoogleTest.
demo: library
	@echo "== Sessions, created by ortmulti and by onnxruntime"
	@model() { $(PY) -m ortmulti.cli models make --out build/demo/models "$$@"; }; \
	$(PY) -m ortmulti.cli bench create "$$(model resnet50)" "$$(model phi3-mini --layers $(LAYERS))" --repeat 2 \
	  $(call DEMO_FILES,create)
	@echo "== Pools, and onnxruntime in threads"
	@$(PY) -m ortmulti.cli bench run matmul:megabytes=64 --models build/demo/models --repeat 1 --threads 1 --no-ceiling \
	  --seconds 1.5 --warm-seconds 0.3 $(call DEMO_FILES,run)

test: test-python test-cpp

# A file's tests share a worker. One that ends is replaced once, since pytest-xdist runs its test again. Tests that measure
# GPU memory run alone; a family without such tests (exit status 5) passes.
PYTEST := -m pytest --dist loadfile --max-worker-restart 1
test-python: packages library
	@echo "== Python tests: $(SELECT)"
	@$(PY) $(PYTEST) -n $(WORKERS) --maxprocesses 16 -m "($(SELECT))$(if $(HAS_NVIDIA), and not gpu)" $(TESTS)
ifneq ($(HAS_NVIDIA),)
	@$(PY) $(PYTEST) -n $(GPU_WORKERS) -m "($(SELECT)) and gpu and not gpu_memory" $(TESTS) || (($$? == 5))
	@$(PY) $(PYTEST) -n 0 -m "($(SELECT)) and gpu_memory" $(TESTS) || (($$? == 5))
endif

test-tools:
	@$(MAKE) test-python WORKERS=0 SELECT="not slow and not essential and ($(FAMILIES))"

test-cpp: build build/test-models
	@echo "== C++ tests"
	@CTEST_PROGRESS_OUTPUT=1 tools/test_cpp.sh $(BUILD)

# Packages come by PYTHONPATH, which leaves out the import hook of an editable installation. What the check prints before
# it aborts is not captured.
test-locks: $(if $(PYTHON_READY),,$(VENV)/.packages)
	@echo "== Locks and the GIL"
	@PYTHONPATH="$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
	  PYTEST_ADDOPTS="$${PYTEST_ADDOPTS:-} --capture=sys" \
	  $(MAKE) test-python WORKERS=0 SELECT="not slow" PYTHON_READY=1 BUILD=build/locks CHECK_LOCKS=1 \
	  PYTHON="$$($(PY) -c 'import sys; print(sys.executable if "$(PYTHON_READY)" else sys._base_executable)')"

test-all: test test-tools
	@echo "== Long tests"
	@$(PY) -m pytest -m slow
	@$(MAKE) test-locks
	@echo "== Headers"
	@tools/test_headers.sh
	@echo "== Sanitizers"
	@tools/test_sanitizers.sh
	@echo "== Fuzzing"
	@tools/test_fuzz.sh
	@echo "== Releases of ONNX Runtime"
	@tools/test_releases.sh
	@$(MAKE) test-wheel
	@echo "== Libraries that use onnxruntime"
	@tools/test_switching.sh dist/*.whl

# --- Documentation ----------------------------------------------------------------------------------------------------

# Reads the sources only: nothing is built, and nothing but the packages comes from the network.
.PHONY: docs
docs: packages
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet
	@echo "build/site: $(PY) -m http.server --directory build/site"

# --- Wheel ------------------------------------------------------------------------------------------------------------

$(VENV)/.wheel-packages: $(VENV)/.packages
	@$(PY) tools/requirements.py wheel >$(VENV)/wheel-requirements.txt
	$(call quietly,wheel-packages,$(PY) -m pip install -r $(VENV)/wheel-requirements.txt)
	@touch $@

.PHONY: wheel test-wheel
wheel: $(if $(PYTHON_READY),,$(VENV)/.wheel-packages)
	@echo "== Building the sdist and the wheel"
	@WHEEL_OPTIONS=$(if $(PYTHON_READY),--no-isolation) tools/build_wheel.sh dist
	@echo "== Trying the wheel"
	@tools/smoke_wheel.sh dist/*.whl $(RELEASES)

test-wheel: wheel
	@echo "== Python tests, with the wheel"
	@RUNTIME=$(RUNTIME) tools/test_wheel.sh dist/*.whl

# --- Style ------------------------------------------------------------------------------------------------------------

CPP_FILES = $(shell git ls-files --cached --others --exclude-standard -- 'cpp/*.?pp' 'tests/cpp/*.?pp' 'tests/fuzz/*.?pp')
PYTHON_DIRS := python tests tools examples $(wildcard benchmarks)

# `make -k lint` shows the findings of all of them.
.PHONY: lint lint-python lint-types lint-format lint-tidy format
lint: lint-python lint-types lint-format lint-tidy

lint-python: packages
	@echo "== ruff"
	@ruff check $(PYTHON_DIRS)
	@ruff format --check $(PYTHON_DIRS)

lint-types: packages library
	@echo "== mypy"
	@$(PY) -m mypy
	@$(PY) -m mypy tests
	@$(PY) -m mypy examples

lint-format: packages
	@echo "== clang-format"
	@clang-format --dry-run -Werror $(CPP_FILES)

# Needs the commands that compile the sources one by one, and nothing that is built. With the check of locks pybind11's
# counts of references may throw.
lint-tidy: packages
	@echo "== clang-tidy"
	@cmake -S . -B build/tidy -DORTMULTI_BUILD_BINDINGS=ON $(CMAKE_OPTIONS) -DORTMULTI_UNITY=OFF \
	  -DORTMULTI_BUILD_TESTS=ON -DORTMULTI_CHECK_LOCKS=OFF -DPython_EXECUTABLE="$$($(PY) -c 'import sys; print(sys.executable)')" \
	  -Dpybind11_DIR="$$($(PY) -m pybind11 --cmakedir)" >/dev/null
	@tools/clang_tidy.sh build/tidy $(if $(findstring undefined,$(origin TIDY_FILES)),,$(or $(TIDY_FILES),""))

format: $(if $(PYTHON_READY),,$(VENV)/.packages)
	@ruff check --fix --select I $(PYTHON_DIRS)
	@ruff format $(PYTHON_DIRS)
	@clang-format -i $(CPP_FILES)

.PHONY: clean
clean:
	rm -rf build $(VENV)/.installed
