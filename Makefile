# make demo    show what pseudograd does, on photos: creates .venv, runs `pseudograd compare`, prints where the report is
# make test    run the test suite
# make test-programs   run the tests of whole programs as well: run it before a change lands
# make test-all        run every test, the slow ones too, and write docs/limits.md
# make check   lint, check types (of a user's file too: tests/typing), check that README and docs agree with the code
# make docs    write every generated page, then `make site`: it builds the site in build/docs; warnings are errors
# make bench   measure speed, memory and import time, write docs/speed.md (QUICK=1: check the promised limits, write nothing)
# make mutants break the package in 300 small ways; at least 95 % must fail a test (SAMPLE, SEED, FILES)
# make test-arm    compare the C loops for ARM with lanes of one number, under an emulator (gcc-aarch64-linux-gnu, qemu-user)
# make test-versions   run the suite on each supported torch, in environments outside the tree (VERSIONS="2.13.0 2.15.0" for some)
#
# PYTHON chooses the interpreter, TORCH the torch version. A suitable torch of PYTHON is reused.

VENV ?= .venv
JOBS ?= 2
SAMPLE ?= 300
SEED ?= 0
VERSIONS ?= $(shell sed -n 's/^SUPPORTED = tuple("\(.*\)".*/\1/p' src/pseudograd/torch_table/eras.py)
export PYTHON TORCH JOBS
unexport PYTHONDONTWRITEBYTECODE  # with it, each of the hundred processes of the tests compiles the library again

run = $(VENV)/bin/python

.PHONY: demo test test-programs test-all check docs site bench mutants test-arm test-versions

demo:
	@scripts/environment.sh $(VENV) report
	@$(run) -m pseudograd compare --jobs $(JOBS)

test:
	@scripts/environment.sh $(VENV) dev
	$(run) -m pytest -q -n $(JOBS) --dist loadgroup

test-programs:
	@scripts/environment.sh $(VENV) dev
	$(run) -m pytest -q -n $(JOBS) --dist loadgroup --programs -m program

test-all:
	@scripts/environment.sh $(VENV) dev
	PSEUDOGRAD_EXAMPLES=20000 $(run) -m pytest -q -n $(JOBS) --dist loadgroup --slow --matrix=docs/limits.md

check:
	@scripts/environment.sh $(VENV) dev
	$(run) -m ruff check .
	$(run) -m ruff format --check .
	$(run) -m mypy
	$(run) -m mypy --strict --config-file= --follow-imports=silent tests/typing/user.py
	$(run) -m pyright --pythonpath $(run) tests/typing/user.py
	$(run) scripts/list_ops.py --check
	$(run) scripts/generate_docs.py --check

docs:
	@scripts/environment.sh $(VENV) dev
	$(run) scripts/list_ops.py
	$(run) scripts/torch_inventory.py
	$(run) scripts/generate_docs.py --ops
	@$(MAKE) --no-print-directory site

site:
	@scripts/environment.sh $(VENV) dev
	$(run) -m sphinx -b html --nitpicky --fail-on-warning --keep-going --quiet docs build/docs
	@echo "the site: build/docs/index.html"

bench:
	@scripts/environment.sh $(VENV) dev
	$(run) benchmarks/speed.py --check $(if $(QUICK),--quick); status=$$?; \
		$(if $(QUICK),,$(run) benchmarks/report.py &&) exit $$status
	$(run) benchmarks/rewrite.py --check
	$(run) benchmarks/rewritten_calls.py --check
	$(run) benchmarks/vector_quantize.py --check
	$(run) benchmarks/diagnose.py --check
	$(run) benchmarks/callbacks.py --check
	$(run) benchmarks/residual_policy.py --check

mutants:
	@scripts/environment.sh $(VENV) dev
	$(run) tests/mutation/run.py --jobs $(JOBS) --sample $(SAMPLE) --seed $(SEED) --files $(FILES)

test-arm:
	@command -v aarch64-linux-gnu-gcc > /dev/null && command -v qemu-aarch64 > /dev/null || { \
		echo "it needs: apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user" >&2; exit 1; }
	@mkdir -p build
	aarch64-linux-gnu-gcc -std=c11 -O3 -ffp-contract=off -static -Isrc/pseudograd/kernels/native -o build/compare_loops \
		tests/kernels/native/compare_loops.c src/pseudograd/kernels/native/[ab]*.c -lm
	qemu-aarch64 build/compare_loops

test-versions:
	@scripts/test_versions.sh $(VERSIONS)
