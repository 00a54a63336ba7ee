PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
# The demo's capabilities, in the order in which they are shown.
CAPABILITIES := addition subtraction sorting code rhyming cursing capitals elements recall
METHODS := adaptive css one-shot greedy
DEMO := --rate 0.05 --limit 200
OUT ?= runs/demo

.PHONY: demo test test-slow check bench bench-recovery bench-ideas bench-neurons bench-gpu bench-peers \
	demo-model truth clean

demo: $(INSTALLED)  ## install, compare the methods on one capability, localize all, write reports
	$(BIN)/caploc locate demo --task demo/addition $(METHODS:%=--method %) $(DEMO) --out $(OUT)-methods
	$(BIN)/caploc locate demo $(CAPABILITIES:%=--task demo/%) --goal set $(DEMO) --out $(OUT)

test: $(INSTALLED_DEV)  ## the default tests: offline, minutes
	$(BIN)/pytest -n 2 $(TESTS)

test-slow: $(INSTALLED_DEV)  ## the tests that take longer
	$(BIN)/pytest -n 2 -m slow $(TESTS)

check: $(INSTALLED_DEV)  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The allocator settings keep freed memory: taking it from the kernel anew costs more than the step.
demo-model: $(INSTALLED_DEV)  ## train the demo model again, about an hour on two cores
	MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184 \
		$(BIN)/python scripts/train_demo.py --out build/demo-model

truth: $(INSTALLED)  ## every single head's effect on every capability of the demo model
	$(BIN)/python scripts/truth.py

# Freed memory is kept, for all contenders alike: taking it anew costs some of them a tenth.
KEPT := MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184

bench: $(INSTALLED)  ## the engine against plain transformers, on one CPU thread: about an hour
	$(KEPT) $(BIN)/python bench/engine.py

bench-recovery: $(INSTALLED)  ## how well heads are found, against rivals: about an hour
	$(BIN)/python bench/recovery.py --simulator --planted --demo

bench-ideas: $(INSTALLED)  ## what each of the engine's ideas is worth: a quarter of an hour
	$(KEPT) $(BIN)/python bench/ideas.py

bench-neurons: $(INSTALLED)  ## what scoring every neuron costs, in forward passes: minutes
	$(KEPT) $(BIN)/python bench/neurons.py

bench-gpu: $(INSTALLED)  ## the same on the shapes of Llama 3 1B and 8B; needs a CUDA device
	$(KEPT) $(BIN)/python bench/engine.py --gpu

bench-peers: $(PEERS)/.installed  ## TransformerLens, nnsight and pyvene beside them, a small case
	$(KEPT) $(PEERS)/bin/python bench/engine.py --peers

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(INSTALLED_DEV): $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# Their dependencies stay out of the project's own environment, and out of git.
$(PEERS)/.installed: pyproject.toml constraints.txt bench/peers.txt
	$(PYTHON) -m venv $(PEERS)
	echo '*' > $(PEERS)/.gitignore
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e . -r bench/peers.txt
	touch $@

clean:
	rm -rf $(VENV) $(PEERS) build runs .pytest_cache .mypy_cache .ruff_cache
