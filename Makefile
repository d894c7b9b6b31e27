# Every target is described after `##`: `make help` prints that.
.DEFAULT_GOAL := help
SHELL := bash
BIN := .venv/bin
# Tests without hooks of the kernel: they run beside the others, and take about as long.
BESIDE := tests/unit/console tests/unit/server tests/unit/connections tests/pipeline tests/vagrant

.PHONY: help setup setup-tests setup-nodes demo test test-long test-kernels test-nodes test-ranges lint format false-positives bench bench-inspect bench-pipeline verdicts soak attack fuzz mutants schemas protocol docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what the demo needs: Debian packages, .venv, jars of Kafka and Spark's connector
	@bash scripts/setup.sh

setup-tests: ## install what tests, lint and bench need as well
	@bash scripts/setup.sh tests

setup-nodes: ## install what `make test-nodes` needs as well
	@bash scripts/setup.sh nodes

demo: setup ## run a broker, clients, the agent and the pipeline for two minutes (KEEP=1: until Ctrl-C)
	@KEEP=$(KEEP) BOOTSTRAP=$(BOOTSTRAP) $(BIN)/python -m tests.demo

# Tests wait this many times longer than on an idle machine; those in virtual machines have limits of their own.
test test-long test-kernels test-nodes test-ranges verdicts: export PATIENCE ?= 3
test: setup-tests ## run lint and all test_*.py, in two halves side by side (25 minutes)
	@$(BIN)/python -m pytest $(BESIDE) >build/beside.log 2>&1 & beside=$$!; \
	trap "kill $$beside" INT TERM; \
	make lint || { kill $$beside; wait $$beside; exit 1; }; \
	$(BIN)/python -m pytest $(BESIDE:%=--ignore=%); host=$$?; \
	wait $$beside; beside=$$?; \
	if [ $$beside = 0 ]; then grep -E "^SKIPPED|need root" build/beside.log; tail -n 1 build/beside.log; else cat build/beside.log; fi; exit $$((host | beside))

test-long: setup-tests ## run the tests that take minutes each: demo, counts beside a broker's own, modern clients, memory limit, warm starts, spool, stops and failures of the job (25 minutes)
	$(BIN)/python -m pytest tests/{e2e,pipeline}/check_*.py

test-kernels: setup-tests ## test the agent on kernels from 5.10 to the newest, in virtual machines (KERNELS="6.1" BACKENDS="kprobe": only these)
	@$(BIN)/python -m tests.kernel
	$(BIN)/python -m pytest tests/kernel/check_*.py

test-nodes: setup-nodes ## test image, chart, service, Prometheus and Spark cluster, real ones, and long outages (1 hour)
	@for file in tests/nodes/check_*.py; do $(BIN)/python -m pytest $$file || status=1; done; exit $$status  # a JVM keeps its jars

test-ranges: setup-tests ## run unit, golden and recorded tests with the lowest and the newest versions that pyproject.toml allows
	@$(BIN)/python scripts/version_ranges.py
	for end in lowest newest; do build/ranges/$$end/bin/python -m pytest -m "not pinned" tests/{unit,golden,recorded} || exit; done

lint: setup-tests ## check formats, style, types, imports and words; change nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/clang-format --dry-run --Werror {bpf,tests/lab/classifier}/*.[ch]
	$(BIN)/python scripts/words.py .clang-format Makefile pyproject.toml *.md $$(find agent bpf docs pipeline tests scripts vagrant \
		! -name '*words.py' ! -path 'docs/data/*' ! -path '*/protocol/schemas.json' \
		-regex '.*[.]\(py\|[ch]\|sh\|md\|ya?ml\|json\|properties\|tpl\|toml\|service\|env\)\|.*/\(NOTES.txt\|Containerfile\|Vagrantfile\)')

format: setup-tests ## format the code and fix what a machine can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i {bpf,tests/lab/classifier}/*.[ch]

false-positives: setup-tests ## pass ten million conversations of other protocols through the classifier
	@$(BIN)/python -m tests.programs.false_positives

bench: setup-tests ## measure the agent's cost beside tcpdump and tshark, and its decoder's beside others'
	@$(BIN)/python -m tests.programs.bench
	@$(BIN)/python -m tests.programs.bench.decode

bench-inspect: setup-tests ## measure what `kafka-probe inspect` takes on an archive of 100 million frames (FRAMES=5000000: of so many)
	@$(BIN)/python -m tests.programs.bench_inspect

bench-pipeline: setup-tests ## measure the pipeline with a generated fleet (ONLY=open OPEN=1000,10000: with so many connections)
	@$(BIN)/python -m tests.programs.bench_pipeline

verdicts: setup-tests ## cause every kind of disconnect and compare the verdicts with the causes (15 minutes)
	@$(BIN)/python -m tests.programs.verdicts
	$(BIN)/python -m pytest tests/verdicts/check_*.py

soak: setup-tests ## open and close a million connections (MINUTES=45: hold 2,000 while sink, agent and pipeline fail)
	@$(BIN)/python -m tests.programs.soak

attack: setup-tests ## flood the agent beside honest clients, into build/attack.json (BASELINE=f33f189: also an older agent)
	@$(BIN)/python -m tests.programs.attack

fuzz: setup-tests ## pass bytes of a coverage-guided fuzzer through the decoder (MINUTES=10)
	@$(BIN)/python -m tests.programs.fuzz

mutants: setup-tests ## change one comparison or bound of the pipeline's rules at a time, and list what no test notices (2 hours)
	@$(BIN)/python -m tests.programs.mutants

schemas: setup ## generate the protocol's tables from the definitions inside Kafka's jars
	@$(BIN)/python -m kafka_probe.protocol.generate
	@bash scripts/jars.sh releases build/jars/releases
	@$(BIN)/python -m scripts.kafka_releases
	@$(BIN)/python -m scripts.archive_rules

protocol: setup ## list the decoded APIs, their versions and what is kept of them, also in build/protocol.json
	@$(BIN)/python -m kafka_probe.protocol.coverage --json build/protocol.json

docs: setup ## generate docs/reference/, docs/images/ and lists in other files from the code, docs/data/ and build/{kernels,bench}.json
	@for found in kernels bench; do [ ! -e build/$$found.json ] || install -m 644 build/$$found.json docs/data/; done
	@$(BIN)/python -m scripts.docs

clean: ## remove what was built and measured, except .venv and jars
	rm -rf dist artifacts .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	mkdir -p build && find build -mindepth 1 -maxdepth 1 ! -name jars ! -name 'setup*' -exec rm -rf {} +
	find agent pipeline tests scripts -name __pycache__ -prune -exec rm -rf {} +
