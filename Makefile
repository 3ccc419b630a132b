# On a bare machine with Python 3.11+ and make: `make run` and `make test` are all there is to know.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Of thousands of modules few are used: they are compiled when they are.
INSTALL := $(PIP) install --no-compile

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install run test browser docs lint format bench clean oldest

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(VENV)/installed ## Make the virtual environment and install softq into it

run: install ## Run the paper's experiments, small enough for two cores, and write the report (softq reproduce)
	$(BIN)/softq reproduce --scale small --jobs 2

# Coverage cannot see compiled code, so the kernels run a second time as plain Python: there numpy warns of what
# compiled code does in silence and on purpose (log 0 = -inf, 64-bit numbers that wrap around).
# Tests of sheer size, of threads (which take turns there) and of long training add nothing there but time.
PLAIN_TESTS := $(addprefix tests/,spaces/test_conformance.py spaces/test_trees.py rewards/test_rewards.py samplers/test_samplers.py samplers/test_recombine.py \
	kernels/test_kernels.py kernels/test_feature_crf.py kernels/test_perceptrons.py \
	$(addprefix linear/test_,arc_features.py attributes.py features.py parsing.py tagging.py tagging_fit.py tagging_model.py))
LARGE := ten_thousand or threads or large_inputs or give_up or wider_tensors or descent_learns or reaches_the_entropy

# Two processes, a file of tests at a time to each, and one thread in each: a second one would only get in the other's way.
# Files go out by their names and not by how many tests they hold, which would leave long ones with few tests for the end;
# the many short examples of src are there to even the two processes out.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder
# Compiled Python is kept, for the processes that tests start.
unexport PYTHONDONTWRITEBYTECODE

test: install ## Run all tests with branch coverage
	$(BIN)/python -m coverage erase
	NUMBA_DISABLE_JIT=1 $(PYTEST) --cov=softq --cov-report= $(PLAIN_TESTS) -k "not ($(LARGE))" \
		-W "ignore:overflow encountered:RuntimeWarning" \
		-W "ignore:divide by zero encountered:RuntimeWarning" \
		-W "ignore:invalid value encountered:RuntimeWarning"
	$(PYTEST) --cov=softq --cov-append --cov-report=term-missing:skip-covered --cov-fail-under=95

oldest: $(VENV)/oldest ## Test the Trainer for Hugging Face models with the oldest Transformers that it supports
	PYTHONPATH=$(CURDIR)/$(VENV)/oldest $(PYTEST) $(addprefix tests/integrations/test_transformers_,scoring.py trainer.py rows.py evaluation.py)

# The report is tested in a browser. Where one cannot be installed, that test is skipped and says so.
browser: ## Install Chromium for the test of the report, where Debian's packages are to be had
	command -v chromium || command -v google-chrome || { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; }

docs: install ## Build the documentation into build/docs; a warning is an error
	$(BIN)/python -m sphinx -q -E -W --keep-going -b html -d build/doctrees docs build/docs

lint: install ## Check format, style, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install ## Format the code and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/peers ## Measure softq against other packages (softq bench core, rewards, grid, classifier, ner, parsing, neural, translation, captioning, encoder, finetuning)
	$(BIN)/softq bench core
	$(BIN)/softq bench rewards
	$(BIN)/softq bench grid
	$(BIN)/softq bench classifier
	$(BIN)/softq bench ner
	$(BIN)/softq bench parsing
	$(BIN)/softq bench neural
	$(BIN)/softq bench translation
	$(BIN)/softq bench captioning
	$(BIN)/softq bench encoder
	$(BIN)/softq bench finetuning

clean: ## Remove the virtual environment and everything generated
	rm -rf $(VENV) .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are what a second call looks at: as long as these two files stay as they are, nothing is installed again.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "softq needs Python 3.11 or later, PYTHON=$(PYTHON) is " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -c constraints.txt hatchling editables
	$(INSTALL) -c constraints.txt --no-deps seqeval rouge-score # come as source and need build tools of their own
	$(INSTALL) --no-build-isolation -c constraints.txt -e '.[dev]'
	$(INSTALL) --no-deps pytorch-crf==0.7.2 torch-struct==0.5 supar==1.1.4 # docs/migration.md runs them; they ask for much they do not need
	touch $@

$(VENV)/oldest: $(VENV)/installed
	$(INSTALL) --no-deps --target $@ transformers==4.51.0 tokenizers==0.21.0 huggingface-hub==0.30.0
	touch $@

# Peers of the benchmarks: one that comes as source, and one for its data.
$(VENV)/peers: $(VENV)/installed
	$(INSTALL) --no-deps fast-bleu==0.0.90
	$(INSTALL) -c constraints.txt --no-deps empulse==0.13.1
	touch $@
