# Every target is described after `##`: `make help` prints that.
.DEFAULT_GOAL := help
SHELL := bash
BIN := .venv/bin

.PHONY: help setup setup-tests setup-nodes demo test test-kernels test-nodes test-ranges lint format false-positives bench verdicts soak attack fuzz schemas protocol docs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what the demo needs: Debian packages, .venv, jars of Kafka and Spark's connector
	@bash scripts/setup.sh

setup-tests: ## the same, and what only the tests and the bench need
	@bash scripts/setup.sh tests

setup-nodes: ## the same, and what image, chart and service are tried with
	@bash scripts/setup.sh nodes

demo: setup ## a real broker, real clients, the agent and the pipeline for a minute (KEEP=1: go on until Ctrl-C)
	@KEEP=$(KEEP) BOOTSTRAP=$(BOOTSTRAP) $(BIN)/python -m tests.demo

test: setup-tests lint ## lint, then the tests: the pipeline and a virtual machine with what the others leave of the processors
	@nice -n 5 $(BIN)/python -m pytest tests/kernel tests/pipeline >build/beside.log 2>&1 & beside=$$!; \
	trap "kill $$beside" INT TERM; \
	$(BIN)/python -m pytest --ignore=tests/kernel --ignore=tests/pipeline; host=$$?; \
	wait $$beside; beside=$$?; cat build/beside.log; exit $$((host | beside))

test-kernels: setup-tests ## the agent on kernels from 5.10 to the newest, in virtual machines (KERNELS="6.1": on this one)
	@$(BIN)/python -m tests.kernel
	$(BIN)/python -m pytest tests/kernel/check_*.py

test-nodes: setup-nodes ## what is deployed, all of it real: image, chart, service, Prometheus, Spark cluster; 2 minutes of soak, 100,000 connections, an hour of outage
	$(BIN)/python -m pytest tests/nodes/check_*.py

test-ranges: setup-tests ## unit, golden and replay tests with the lowest and with the newest versions that pyproject.toml allows
	@$(BIN)/python scripts/ranges.py
	for end in lowest newest; do build/ranges/$$end/bin/python -m pytest -m "not pinned" tests/{unit,golden,recorded} || exit; done

lint: setup-tests ## formats, style, types and the order of the packages; changes nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/clang-format --dry-run --Werror {bpf,tests/lab/classifier}/*.[ch]
	$(BIN)/python scripts/words.py $$(find agent bpf pipeline tests scripts vagrant ! -name '*words.py' \( -name '*.py' -o -name '*.[ch]' -o -name '*.sh' \)) \
		*.md {tests,vagrant}/README.md $$(find docs -name '*.md')

format: setup-tests ## format and fix what can be fixed by machine
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i {bpf,tests/lab/classifier}/*.[ch]

false-positives: setup-tests ## ten million conversations of other protocols through the classifier
	@$(BIN)/python -m tests.programs.false_positives

bench: setup-tests ## cost of the agent beside tcpdump and tshark on the same load, and of its decoder beside others'
	@$(BIN)/python -m tests.programs.bench
	@$(BIN)/python -m tests.programs.bench.decode

verdicts: setup-tests ## every cause of a disconnect, made to happen, and the verdicts held against it (15 minutes)
	@$(BIN)/python -m tests.programs.verdicts
	$(BIN)/python -m pytest tests/verdicts/check_*.py

soak: setup-tests ## a million connections opened and closed; MINUTES=45: 2,000 at a time, while sink, agent and pipeline fail
	@$(BIN)/python -m tests.programs.soak

attack: setup-tests ## floods at the agent beside honest clients, into build/attack.json (BASELINE=REVISION: also at that revision, for comparison)
	@$(BIN)/python -m tests.programs.attack

fuzz: setup-tests ## bytes of a coverage-guided fuzzer through the decoder (MINUTES=10)
	@$(BIN)/python -m tests.programs.fuzz

schemas: setup ## generate the protocol's tables from the definitions inside Kafka's jars
	@$(BIN)/python -m kafka_probe.protocol.generate

protocol: setup ## which versions of which API are decoded, and what is kept of them; also in build/protocol.json
	@$(BIN)/python -m kafka_probe.protocol.coverage --json build/protocol.json

docs: setup ## generate docs/reference/ and docs/images/ from the code and docs/data/; takes over the newest build/kernels.json and build/bench.json
	@for found in kernels bench; do [ ! -e build/$$found.json ] || install -m 644 build/$$found.json docs/data/; done
	@$(BIN)/python -m scripts.docs

clean: ## remove what was built and measured; .venv and jars stay
	rm -rf dist artifacts .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	mkdir -p build && find build -mindepth 1 -maxdepth 1 ! -name jars ! -name 'setup*' -exec rm -rf {} +
	find agent pipeline tests scripts -name __pycache__ -prune -exec rm -rf {} +
