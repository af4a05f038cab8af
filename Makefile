# `make reproduce` sets everything up and runs the main job; `make test` sets everything up and passes the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PRESET ?= main
EXTRAS := plot,ipopt,qp,ray,diffusers,flows,jax,bench,site,release,dev
LAB := ipopt,grid,molecules,ray

.PHONY: reproduce check test release-test install lint docs site dist wheel-test figures evidence bench torture clean

reproduce: install
	$(BIN)/trimtab reproduce --preset $(PRESET)

# lint, types and the fast tests, for the inner loop
check: lint
	$(BIN)/python -m pytest -n auto -m "not slow and not release"

# everything that protects users: the library, the lab, the docs
test: install
	$(BIN)/python -m pytest -n auto -m "not release"

# all of it: with the wheel, the site, browser pages, examples, kills and Ray
release-test: install
	$(BIN)/python -m pytest -n auto

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml lab/pyproject.toml lab/setup.py pins.txt $(wildcard lab/trimtab_lab/*/*.[ch])
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -c pins.txt -e '.[$(EXTRAS)]' -e './lab[$(LAB)]'
	# without what it needs for images alone: torchvision comes in one build, which does not fit a CPU build of torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c pins.txt --no-deps azula
	touch $@

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: install
	$(BIN)/python -m pytest tests/docs/test_docs.py
	@echo "Every snippet of README.md and docs/ runs, every link leads somewhere, and the word counts hold."

site: install
	$(BIN)/python docs/site build/site

dist: install
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m build --no-isolation --outdir dist lab
	$(BIN)/python -m twine check --strict dist/*

wheel-test: install
	$(BIN)/python -m pytest tests/packaging

figures: install
	$(BIN)/python docs/make_online.py
	$(BIN)/python docs/make_fidelity.py
	$(BIN)/python docs/make_domains.py
	$(BIN)/python docs/make_choose.py

# each part shows its progress, keeps what it has made and continues where it was stopped; a public PDM checkpoint
# (docs/pdm.md says where it is from) is PUBLIC="--checkpoint FILE --circles MAP.json"
evidence: install
	$(BIN)/python docs/make_evidence.py $(PUBLIC)

# prints the ratios and writes docs/results/performance.md; takes about six minutes of one processor
bench: install
	$(BIN)/python benchmarks --write

torture: install
	$(BIN)/python tools/torture.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis runs build dist
