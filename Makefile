# Everything runs from .venv, which is made on first use and brought up to date when what it is made from changes.
# `make help` lists the targets.

PYTHON = python3
BIN = .venv/bin
READY = .venv/ready
# After an upgrade of the system's Python, .venv finds its packages no more; after the clone was moved or copied, it runs
# the code at the former place; and PYTHON= may ask for another Python. Then it is made anew.
PYTHON_OF = -c 'import sys; print(sys.version_info[:2])'
AS_ASKED = $(if $(filter command,$(origin PYTHON)),test "$$($(PYTHON) $(PYTHON_OF))" = "$$($(BIN)/python $(PYTHON_OF))",true)
IS_OURS = $(BIN)/python -c 'import pip' && grep -qF ' $(CURDIR)/.venv' .venv/pyvenv.cfg && $(AS_ASKED)
LOST := $(shell test ! -e $(READY) || { $(IS_OURS); } 2>/dev/null || echo lost-packages)
CODE = aggregator site_client shared studies dropfed deploy benchmarks
MINUTES = 60
# Tests kill processes, never the machine: what the kernel was given is kept, and no test need wait for the disk.
# They run beside each other, each with one thread: threads that wait for each other burn what others need.
QUICKLY = OMP_NUM_THREADS=1 LD_PRELOAD='$(firstword $(wildcard /usr/lib/*/libeatmydata.so))' $(BIN)/python
PYTEST = $(QUICKLY) -m pytest
# Python keeps what it compiles, also where a container's image says otherwise: each of hundreds of processes would
# compile PyTorch anew, for six seconds.
export PYTHONDONTWRITEBYTECODE =

demo-options = $(if $(TASK),--task $(TASK)) $(if $(METHOD),--method $(METHOD)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SITES),--sites $(SITES)) $(if $(SEED),--seed $(SEED)) \
	$(if $(IMAGE_SIZE),--image-size $(IMAGE_SIZE)) $(if $(DATA),--data '$(DATA)') $(if $(AS_SUGGESTED),--as-suggested)

.PHONY: help demo test test-quick test-long study-smoke soak fuzz figures model-check lint servers coverage bundle docs screenshots tutorial site setup lock clean $(LOST)
.DEFAULT_GOAL = help

help:      ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1\t/p' Makefile | expand -t 20

demo: $(READY)      ## a whole federation on this machine; TASK= METHOD= ROUNDS= SITES= SEED= IMAGE_SIZE= DATA= AS_SUGGESTED= change it
	@$(BIN)/python -m deploy.local.demo $(strip $(demo-options))

test: $(READY)      ## what each change must pass, on all cores
	@$(PYTEST) -n auto --dist loadfile --no-loadscope-reorder

test-quick: $(READY)      ## the tests of parsers, folders, exchange, audit and the figures' marks: neither training nor whole federations
	@$(PYTEST) -n auto --dist loadfile $(addprefix tests/,doors exchange folder audit fuzz old_mistakes test_figures.py)

test-long: $(READY)      ## the tests that take long, and every case of what `make test` shows by a few; those of MONAI's networks skip where it is not installed
	@$(PYTEST) -m long

study-smoke: $(READY)      ## every study of configs/studies, made small and played to its end; STUDIES= names some
	@$(QUICKLY) -m tests.study_smoke $(STUDIES)

soak: $(READY)      ## federations in random faults and kills; MINUTES=60 changes for how long
	@$(BIN)/python -m tests.faults.soak --minutes $(MINUTES)

fuzz: $(READY)      ## hostile inputs for every door, by coverage; MINUTES=60 changes for how long
	@$(BIN)/python -m tests.fuzz.run --minutes $(MINUTES)

figures: $(READY)      ## measure every figure of README and docs at one commit; OCTA= HRF= FUNDUS= EXUDATES= name images; takes days
	@$(BIN)/python -m benchmarks.figures $(if $(OCTA),--octa '$(OCTA)') $(if $(HRF),--hrf '$(HRF)') $(if $(FUNDUS),--fundus '$(FUNDUS)') $(if $(EXUDATES),--exudates '$(EXUDATES)')

model-check: $(READY)      ## every interleaving of daemons and accidents in small models, and walks through them on files; takes long
	@$(BIN)/python -m tests.model_check
	@$(BIN)/python -m tests.model_check.replay --walks 1000

lint: $(READY)      ## style, types and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict $(CODE)
	$(BIN)/lint-imports

servers: $(READY)      ## install and start the WebDAV servers that the tests run, and print what each can do
	@tests/install_servers.sh || true
	@$(BIN)/python -m tests.folder.matrix

coverage: $(READY)      ## all tests, and the lines they never reach
	@$(PYTEST) --cov

bundle: $(READY)      ## what installs dropfed on a machine without internet, signed; OUT= KEY= change where
	@$(BIN)/python -m deploy.bundle.make $(if $(OUT),--output '$(OUT)') $(if $(KEY),--key '$(KEY)')

docs: $(READY)      ## write docs/commands.md anew, from the commands' own help
	@$(BIN)/python -m deploy.local.commands

screenshots: $(READY)      ## the documentation's pictures of pages, taken anew from a small real run; needs Chromium
	@$(BIN)/python -m deploy.local.screenshots

tutorial: $(READY)      ## run docs/tutorial.ipynb, and write it with its outputs
	@$(BIN)/python -m deploy.local.notebook docs/tutorial.ipynb

site: $(READY)      ## the documentation as pages for a browser, which need no network: build/site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

setup: $(READY)      ## make .venv; PYTHON=python3.12 chooses the Python
	@:

$(READY): requirements.lock setup.cfg pyproject.toml $(LOST)
	@$(if $(LOST),$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null && rm -f $(READY);) $(PYTHON) deploy/local/bootstrap.py

lock: $(READY)      ## choose versions anew for the ranges in setup.cfg
	@$(BIN)/python deploy/local/lock.py > requirements.lock.new
	@mv requirements.lock.new requirements.lock

clean:      ## remove .venv and what tools leave behind
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
