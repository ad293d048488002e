# Everything is set up in .venv; nothing is installed anywhere else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What users install, and that with what developers use.
INSTALLED := $(VENV)/.installed
STAMP := $(VENV)/.installed-dev
BENCH := $(VENV)/.installed-bench
# Peers that want releases which nothing else here can have.
BENCH_ALL := build/venv-bench-all
PROTOS := $(wildcard protos/opferry/v1/*.proto)

# What needs the machine to itself: gigabytes of memory, waits that are measured, suites within suites.
ALONE := tests/large tests/farm/test_fairness.py tests/packaging/test_numpy_range.py

.PHONY: help demo test test-all soak fuzz lint format protos simulator bench bench-all bench-scale bench-link bench-envoy clean

help:  ## what can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[report,server,xlsx]'
	touch $@

$(STAMP): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: $(INSTALLED)  ## validate the example cases against an embedded CPU server
	$(BIN)/opferry validate -i examples/rotary_cases.csv

test: lint  ## lint, and all tests that take seconds, on two cores
	$(BIN)/python -m pytest -m 'not full' -n 2 --dist loadfile

test-all: $(STAMP)  ## the tests that take minutes: whole suites, large tensors, clean installs, other numpy releases, Node.js, a browser
	$(BIN)/python -m pytest -m full --timeout 1200 -n 2 --dist loadfile $(ALONE:%=--ignore=%)
	$(BIN)/python -m pytest -m full --timeout 1200 $(ALONE)

soak: $(STAMP)  ## 5,000 requests with faults on the simulator, and one call of six minutes, about that long; SOAK="--requests 500"
	$(BIN)/python -m tests.soak $(SOAK)

fuzz: $(STAMP)  ## 1,000,000 chunk frames read by hand and by the generated code, a minute or two; FUZZ="--inputs 10000"
	$(BIN)/python -m tests.fuzz.frames $(FUZZ)

lint: $(STAMP)  ## formatting, lint and types of Python and protos
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/buf lint protos
	$(BIN)/buf format --diff --exit-code protos

format: $(STAMP)  ## format Python and protos in place
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/buf format --write protos

protos: $(STAMP)  ## generate client/opferry/v1 from protos/
	$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=client --pyi_out=client $(PROTOS)

simulator:  ## build the simulator of CANN's C symbols in build/simulator
	$(MAKE) -C tests/simulator BUILD=$(CURDIR)/build/simulator

$(BENCH): $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	touch $@

bench: $(BENCH)  ## what calls, the reference and imports cost, as ratios against peers in the same run; JSON in build/bench
	mkdir -p build/bench
	$(BIN)/python -m benchmarks.transport --json build/bench/transport.json
	$(BIN)/python -m benchmarks.many --json build/bench/many.json
	$(BIN)/python -m benchmarks.reference --json build/bench/reference.json
	$(BIN)/python -m benchmarks.import_cost

$(BENCH_ALL)/.installed: pyproject.toml
	$(PYTHON) -m venv $(BENCH_ALL)
	$(BENCH_ALL)/bin/python -m pip install --quiet --upgrade pip
	$(BENCH_ALL)/bin/python -m pip install --quiet --editable '.[bench-all]'
	touch $@

bench-all: $(BENCH_ALL)/.installed  ## calls beside HTTP, TVM RPC and PyTriton too, and by more callers; many minutes; JSON in build/bench
	mkdir -p build/bench
	$(BENCH_ALL)/bin/python -m benchmarks.transport --all --json build/bench/transport-all.json

bench-scale: $(STAMP)  ## how calls scale with size, time, workers and callers, some minutes and 10 GiB of memory; JSON in build/bench
	mkdir -p build/bench
	$(BIN)/python -m benchmarks.scale --json build/bench/scale.json

bench-link: $(STAMP)  ## 256 MiB there and back over 1 Gbit/s with a round trip of 30 ms, beside raw TCP; takes root; JSON in build/bench
	mkdir -p build/bench
	$(BIN)/python -m benchmarks.link --json build/bench/link.json
	$(BIN)/python -m benchmarks.link --buffer-mib 32 --json build/bench/link-large-buffers.json

bench-envoy: $(STAMP)  ## what Envoy and TLS cost a call, by size; a minute or two; JSON in build/bench
	mkdir -p build/bench
	$(BIN)/python -m benchmarks.envoy --json build/bench/envoy.json

clean:  ## remove what was made here
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .cache
