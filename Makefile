# make demo: the whole method on Four-Rooms.   make test: lint, types and tests.   make bench, clean.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test lint browser keyboards clean

demo: $(READY)
	$(BIN)/lk demo

test: $(READY) lint browser
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations 25

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# The tests of `lk play` drive a real browser; where root can, it is installed.
browser:
	@.ci/browser

# The keyboards that come with the package: collected, learned and made small, from nothing.
SHIPPED := src/laplacian_keyboard/keyboards
explorer-cheetah := babble
explorer-walker := rnd
explorer-quadruped := babble+rnd
steps-quadruped := 1000000
explorer-point-maze := random
steps-point-maze := 200000

keyboards: $(foreach domain,cheetah walker quadruped point-maze,keyboard-$(domain))

keyboard-%: $(READY)
	$(BIN)/lk collect $* --explorer $(explorer-$*) --steps $(or $(steps-$*),500000) --out data/$*
	$(BIN)/lk pretrain data/$* --k 10 --out runs/$*
	$(BIN)/lk export runs/$* --out $(SHIPPED)/$*

# The environment, made again when what it is made from changes.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(READY)

clean:
	rm -rf .venv .jax-cache lk-demo
