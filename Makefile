# Each target first creates .venv and installs what it needs; no other setup is required.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
# The exact version of which a CPU build is at hand; pyproject.toml allows a range.
TORCH := torch==2.13.0
# Where to find that build: without it, the lock file would contain gigabytes of CUDA packages.
FIND_LINKS := $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS))
# Two workers with one thread each: two torch processes with two threads each are many times slower on two cores.
TEST := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -n 2 --dist loadfile

# Instruction sets of other processors; ignored on processors without this choice (ARM).
CPUS := avx2 default

.PHONY: demo test test-cpus test-exports soak soak-short check format lint types security bandit audit bench arena notebook docs dist lock coverage mutation clean

demo: .venv/core.done
	$(BIN)/pinprompt demo

test: .venv/dev.done
	$(TEST)

# Learning tests must pass on every processor: torch, oneDNN and MKL are restricted to older instruction sets.
test-cpus: .venv/dev.done
	@failed=""; for cpu in $(CPUS); do \
	  case $$cpu in avx2) onednn=AVX2 mkl=AVX2;; *) onednn=SSE41 mkl=SSE4_2;; esac; \
	  echo "learning tests with ATEN_CPU_CAPABILITY=$$cpu"; \
	  ATEN_CPU_CAPABILITY=$$cpu ONEDNN_MAX_CPU_ISA=$$onednn MKL_ENABLE_INSTRUCTIONS=$$mkl $(TEST) -m learning \
	    || failed="$$failed $$cpu"; \
	done; \
	if [ -n "$$failed" ]; then echo "learning tests failed with:$$failed"; exit 1; fi

# Loads the files of `pinprompt export` with the real tools. Each has its own folder: promptfoo needs Node, and dspy
# needs older versions of packages that pinprompt uses.
test-exports: .venv/dev.done
	npm install --no-audit --no-fund --silent --prefix build/promptfoo promptfoo@0.121
	test -x build/dspy/bin/python || $(PYTHON) -m venv build/dspy
	build/dspy/bin/pip install --quiet --disable-pip-version-check 'dspy>=3,<4'
	PROMPTFOO=build/promptfoo/node_modules/.bin/promptfoo DSPY_PYTHON=build/dspy/bin/python \
	  $(TEST) -n 0 -rs tests/cli/test_exports.py

# Random kills and random damage to every file, about half an hour on two cores; CI runs the short version.
soak: .venv/dev.done
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python tools/soak.py --kills 1000 --damages 1000 --ray 3

soak-short: .venv/dev.done
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python tools/soak.py --minutes 2

# The audit comes last, so that its message is the last line if it could not run.
check: lint types bandit test
	@$(BIN)/python tools/audit.py; code=$$?; \
	if [ $$code = 3 ]; then echo "make check: everything else passed; KNOWN VULNERABILITIES WERE NOT CHECKED (make audit)"; \
	elif [ $$code = 0 ]; then echo "make check: all passed"; else exit $$code; fi

lint: .venv/dev.done
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: .venv/dev.done
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: .venv/dev.done
	$(BIN)/mypy

security: bandit audit

bandit: .venv/dev.done
	$(BIN)/bandit -q -c pyproject.toml -r src

audit: .venv/dev.done
	$(BIN)/python tools/audit.py

# Runs every benchmark in its own process and writes the tables of docs/benchmarks.md; 15 minutes on two idle cores.
bench: .venv/dev.done
	$(BIN)/python -m benchmarks.run

# Prompt optimisers beside each other (docs/arena.md): hours, but a cell at a time; starting it again continues. Each peer
# has its own environment. ARENA="--list" shows what is left, ARENA="--splits 13 --test-rows 50" runs a part of it.
arena: .venv/dev.done $(foreach peer,gepa promptolution dspy,build/arena/$(peer)/done)
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m benchmarks.arena $(ARENA)

build/arena/gepa/done: PEER := gepa>=0.1,<0.2
build/arena/promptolution/done: PEER := promptolution>=2,<3
build/arena/dspy/done: PEER := dspy[optuna]>=3,<4
build/arena/%/done:
	test -x build/arena/$*/bin/python || $(PYTHON) -m venv build/arena/$*
	build/arena/$*/bin/pip install --quiet --disable-pip-version-check '$(PEER)'
	@touch $@

# Executes the notebook of examples/ with the real model and stores its outputs; takes a few minutes.
notebook: .venv/dev.done
	$(BIN)/python tools/execute_notebook.py
	$(BIN)/python tools/make_docs.py

docs: .venv/dev.done
	$(BIN)/python tools/make_docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the site: build/site/index.html"

# Builds and checks wheel and sdist, and tries the wheel in a fresh environment (downloads torch).
dist: .venv/dev.done
	$(BIN)/python tools/dist.py

# Runs the whole suite, then prints the coverage of each package that must have 95 % (exit code 1 if one has less).
coverage: .venv/dev.done
	@mkdir -p build
	$(TEST) --cov=pinprompt --cov-branch --cov-report=term-missing:skip-covered --cov-report=json:build/coverage.json
	$(BIN)/python tools/coverage_rooms.py build/coverage.json 95

# About an hour on two cores; `.venv/bin/python tools/mutation.py replay` checks one file.
mutation: .venv/dev.done
	$(BIN)/python tools/mutation.py --jobs 2 --min 85

# torch first, by exact version, so that pip uses the CPU build if one is available. With LOCKED=1 everything else has the
# versions and hashes of requirements/ci.txt (Python 3.11); torch is not in it, since its builds differ by machine.
.venv/core.done: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
ifdef LOCKED
	$(PIP) --no-deps $(TORCH)
	$(PIP) --no-deps --require-hashes --requirement requirements/ci.txt
	$(PIP) --no-deps --no-build-isolation --editable .
else
	$(PIP) $(TORCH)
	$(PIP) --editable .
endif
	@touch $@

.venv/dev.done: .venv/core.done
ifndef LOCKED
	$(PIP) --editable '.[all,dev]'
endif
	@touch $@

# The newest versions that pyproject.toml allows, with hashes; run the tests with them (make clean test LOCKED=1) first.
lock: .venv/dev.done
	@mkdir -p build && echo '$(TORCH)' > build/torch.txt
	$(BIN)/uv pip compile pyproject.toml --constraint build/torch.txt --all-extras --python-version 3.11 --upgrade --generate-hashes \
	  --no-emit-package torch $(FIND_LINKS) --custom-compile-command "make lock" --quiet --output-file requirements/ci.txt

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis mutants
