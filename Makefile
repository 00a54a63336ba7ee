PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
VLLM := .venv-vllm
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
OUT ?= runs/demo
MODELS ?= smollm2
comma := ,
# where it can: Debian and its like, as root. Elsewhere the tests say what is missing.
INSTALL_CHROMIUM := (apt-get update -qq; apt-get install --yes -qq --no-install-recommends chromium) || true
INSTALL_BUBBLEWRAP := (apt-get update -qq; apt-get install --yes -qq --no-install-recommends bubblewrap) || true
# two processes, a file's tests in one: what its fixtures prepare is prepared once
BESIDE := -n 2 --dist loadfile
# whose signatures `make test-shapes` checks at every call
SHAPED := caploc.designs,caploc.recovery,caploc.search,caploc.tasks,caploc.models,caploc.engine,caploc.store,caploc.measurement,caploc.validation,caploc.interactions,caploc.neurons,caploc.playground
# where a Python keeps its packages
SITE := python -c 'import site; print(*site.getsitepackages())'
# Compiled files are kept, whatever the machine's habit: each process would compile all sources anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-shapes test-slow test-browser test-cluster test-faults test-real test-vllm check bench gpu-check \
	bench-conformance bench-outside truth-real bench-draws bench-joint wheel test-wheel clean

demo: $(INSTALLED)  ## install, fetch SmolLM2, localize some of its capabilities, write reports
	$(BIN)/caploc demo --out $(OUT)

test: $(INSTALLED_DEV)  ## the default tests: offline, minutes
	command -v bwrap > /dev/null || $(INSTALL_BUBBLEWRAP)
	$(BIN)/pytest $(BESIDE) $(TESTS)

test-shapes: $(INSTALLED_DEV)  ## the default tests again, array shapes and types checked at every call: a third longer
	$(BIN)/pytest $(BESIDE) --jaxtyping-packages=$(SHAPED),beartype.beartype $(TESTS)

test-slow: $(INSTALLED_DEV)  ## the tests that take longer
	$(BIN)/pytest $(BESIDE) -m slow $(TESTS)

test-browser: $(BIN)/.installed-browser  ## pages in the system's Chromium, which $$CHROMIUM may name
	test -x "$${CHROMIUM:-/usr/bin/chromium}" || $(INSTALL_CHROMIUM)
	$(BIN)/pytest $(BESIDE) -m browser tests/browser $(TESTS)

test-vllm: $(VLLM)/.installed  ## vLLM as an engine, on the CPU, in an environment of its own: minutes
	$(VLLM)/bin/caploc models fetch smollm2
	TORCHDYNAMO_DISABLE=1 $(VLLM)/bin/pytest -m vllm tests/engine/test_vllm.py tests/real/test_engines.py $(TESTS)

test-cluster: $(BIN)/.installed-ray  ## workers on Ray clusters of this machine: minutes
	$(BIN)/pytest -m cluster tests/workers $(TESTS)

test-faults: $(BIN)/.installed-ray  ## kills, signals, full disks: half an hour; FAULTS=5: less
	$(BIN)/pytest -m faults tests/faults $(TESTS)

test-real: $(INSTALLED_DEV)  ## pretrained models, fetched first; MODELS=all: all three, not SmolLM2 alone
	$(BIN)/caploc models fetch $(subst $(comma), ,$(MODELS))
	MODELS=$(MODELS) $(BIN)/pytest $(BESIDE) -m real tests/real $(TESTS)

wheel: $(BIN)/.installed-package  ## wheel and source archive, in build/dist
	rm -rf build/dist
	$(BIN)/python -m build --outdir build/dist .

test-wheel: $(BIN)/.installed-package  ## the wheel in an empty environment finds heads: minutes
	$(BIN)/pytest -m wheel tests/packaging $(TESTS)

check: $(INSTALLED_DEV)  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

truth-real: $(INSTALLED)  ## what every head of SmolLM2 and three small models does alone, on eleven tasks: hours; resumes
	$(BIN)/caploc models fetch all
	$(BIN)/python bench/small.py
	$(BIN)/python bench/census.py

bench-draws: $(INSTALLED)  ## recall and intervals of the search by draws from that truth; README's table: minutes
	$(BIN)/python bench/draws.py

bench-joint: $(INSTALLED)  ## sets, css, csb and greedy on the models, by what their heads take together: hours; resumes
	$(BIN)/python bench/joint.py

# Freed memory is kept, for all contenders alike: taking it anew costs some of them a tenth.
KEPT := MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184

bench: $(INSTALLED)  ## the engine against plain transformers, on one CPU thread: about an hour; DATA=FOLDER of GSM8K's and ARC's rows
	$(KEPT) $(BIN)/python bench/engine.py $(if $(DATA),--data $(DATA))

gpu-check: $(INSTALLED)  ## ten minutes on one GPU: right in bfloat16, and how fast; ends with 1 without CUDA
	$(KEPT) $(BIN)/python bench/gpu_check.py

bench-conformance: $(PEERS)/.installed  ## faults reported in public, tried on caploc, TransformerLens, nnsight and pyvene: minutes
	$(PEERS)/bin/python bench/conformance.py

bench-outside: $(INSTALLED)  ## MIB's protocol at head level beside rivals with gradients, heads known by definition, backups: hours; resumes
	$(BIN)/caploc models fetch smollm2
	$(BIN)/python bench/outside.py
	$(BIN)/python bench/roles.py
	$(BIN)/python bench/backups.py

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing caploc and what it needs into $(VENV): a few minutes."
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[gguf,ui]'
	touch $@

$(BIN)/.installed-browser: $(INSTALLED_DEV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,browser]'
	touch $@

$(INSTALLED_DEV): $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

$(BIN)/.installed-package: $(INSTALLED_DEV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,package]'
	touch $@

$(BIN)/.installed-ray: $(INSTALLED_DEV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	touch $@

# Their dependencies stay out of the project's own environment, and out of git.
$(PEERS)/.installed: pyproject.toml constraints.txt bench/peers.txt
	$(PYTHON) -m venv $(PEERS)
	echo '*' > $(PEERS)/.gitignore
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e . -r bench/peers.txt
	touch $@

# vLLM pins torch and transformers. torchvision and its like come built for CUDA and break
# transformers; compiling kernels takes minutes that two cores do not win back.
$(VLLM)/.installed: pyproject.toml requirements-vllm.txt
	$(PYTHON) -m venv $(VLLM)
	echo '*' > $(VLLM)/.gitignore
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check -e . -r requirements-vllm.txt
	$(VLLM)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

clean:
	rm -rf $(VENV) $(PEERS) $(VLLM) build runs .pytest_cache .mypy_cache .ruff_cache
