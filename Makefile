# `make demo` and `make test` on a machine with Python 3.11+ and nothing else: everything goes into .venv. The demo installs
# what it needs (requirements-demo.lock) and compiles nothing, every other target the rest as well (requirements.lock).
.POSIX:
.SUFFIXES:
.PHONY: demo test extras test-fast strangers plain chaos coverage compiled wheel release sanitize servers lint reference pictures docs bench bench-compare bench-journal bench-sinks bench-snapshot audit lock clean

# Python, Spark and Hadoop of the environment are not those of .venv, and have other settings.
unexport PYTHONPATH PYTHONHOME PYTHONWARNINGS PYTHONOPTIMIZE PYTHONINSPECT PYTHONSAFEPATH PYTHONDEVMODE PYTHONPLATLIBDIR \
  PYTEST_PLUGINS PYTEST_DISABLE_PLUGIN_AUTOLOAD MYPYPATH SPARK_HOME SPARK_CONF_DIR SPARK_DIST_CLASSPATH HADOOP_CONF_DIR HADOOP_HOME YARN_CONF_DIR PYSPARK_PYTHON \
  PYSPARK_DRIVER_PYTHON PYSPARK_SUBMIT_ARGS

# Packages go into .venv, wherever the environment or pip's configuration installs others. The locks alone choose them.
export PIP_USER = 0
unexport PIP_TARGET PIP_PREFIX PIP_ROOT PIP_REQUIREMENT PIP_CONSTRAINT PIP_BUILD_CONSTRAINT PIP_ONLY_BINARY PIP_NO_BINARY PIP_DRY_RUN

VENV = .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/installed
DEMO_STAMP = $(VENV)/installed-demo
DOCS_VENV = .venv-docs
AUDIT_VENV = .venv-audit
STRANGERS = /var/tmp/aiorepl-strangers
ARGS =
PLAIN_ARGS =
# An environment that was made in another folder, or whose Python is gone, is made again.
$(shell sh scripts/venv.sh --check $(VENV) $(DOCS_VENV) $(AUDIT_VENV))
# Four for each of two cores: most of a test's time is a server's, or waiting for it.
WORKERS = 8
PYTEST = pytest -n $(WORKERS) --dist loadgroup
# Tests without a server wait for nothing: one process for each core.
PURE_PYTEST = pytest -n 2
# The folders with modules that compile.
COMPILED = tests/wire tests/pgoutput tests/values tests/transactions tests/formats tests/snapshot/model
# Of the journal, the tests that write segments: segment_builder is all of it that compiles.
SEGMENTS = tests/journal/test_journal.py tests/journal/test_parts.py tests/journal/test_prepared.py \
  tests/journal/test_reading.py

demo: $(DEMO_STAMP)
	@$(BIN)/aiorepl demo $(ARGS)

# First what compiles, in plain Python, unless ARGS choose: every sixth test, chosen by the day. Then everything, as it is installed.
test: $(STAMP)
	@plain=plain; test -z "$(ARGS)" || plain=; $(MAKE) -j4 lint servers compiled $$plain PLAIN_ARGS=--by-day
	$(BIN)/$(PYTEST) $(ARGS)

# What compiles, in plain Python: the tests without a server reach each of its lines. Atheris never runs anything else.
plain: $(STAMP)
	AIOREPL_PURE_PYTHON=1 $(BIN)/$(PURE_PYTEST) -q $(PLAIN_ARGS) -m "not server" $(COMPILED) $(SEGMENTS) tests/fuzz/test_decoder.py

# What needs no server, and one path from a real server to a sink: for everyday work.
test-fast: $(STAMP)
	$(BIN)/$(PYTEST) -m "not server or one_path" $(COMPILED) tests/journal tests/source tests/transforms tests/delivery tests/pipeline \
	  tests/snapshot tests/live $(ARGS)

# Random programs of workloads, configurations and faults, verified: ARGS="--minutes 60 --seed 1", or ARGS="--replay 1".
chaos: $(STAMP) compiled servers
	$(BIN)/python tests/chaos/suite.py --kill-points --report chaos.md $(ARGS)

# Lines and branches, in plain Python because compiled code is not traced; ARGS choose tests.
coverage: $(STAMP) servers
	@rm -f .coverage .coverage.*
	-AIOREPL_PURE_PYTHON=1 $(BIN)/coverage run -m $(PYTEST) $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/python scripts/coverage.py

# The hot path compiled from the sources as they are now, if they were edited since. Without a C compiler: nothing.
compiled: $(DEMO_STAMP)
	@$(BIN)/python hatch_build.py

# Each extra alone in a fresh virtual environment, from the wheel: ARGS="kafka spark" for some of them.
extras: compiled servers
	@sh scripts/wheel.sh $(BIN)/python dist
	@$(BIN)/python scripts/extras.py dist/*.whl $(ARGS)

# The source distribution and a wheel in dist/, and the wheel tried in a fresh virtual environment without a compiler.
wheel: $(DEMO_STAMP)
	@sh scripts/wheel.sh $(BIN)/python dist
	@sh scripts/smoke.sh $(BIN)/python dist/*.whl

# Everything that a release needs, checked; nothing is published. CONTRIBUTING.md says how to release.
release: $(STAMP) $(AUDIT_VENV)/installed
	@sh scripts/release.sh $(BIN) $(AUDIT_VENV)/bin dist

# What compiles, with every access to memory checked. Minutes; ARGS choose other tests.
sanitize: $(STAMP)
	@sh scripts/sanitize.sh $(VENV) $(ARGS)

# More versions, a Kafka broker and servers of objects for the tests, as far as this machine can get them: without one its
# tests are skipped or use less, and say so.
servers: $(STAMP)
	-@$(BIN)/python scripts/kafka.py & $(BIN)/python scripts/s3.py & $(BIN)/python scripts/azure.py & $(BIN)/python scripts/delta.py & \
	  $(BIN)/python scripts/debezium.py & \
	  $(BIN)/python scripts/debian.py & $(BIN)/python scripts/servers.py; wait

# Against pg_recvlogical and others, in turns: ARGS=--quick takes less than two minutes.
bench: $(STAMP) compiled
	$(BIN)/python bench/suite.py $(ARGS)

# Measures two commits alternately, and shows which differences exceed the noise: A=COMMIT B=COMMIT, ARGS="--only mixed" for less.
bench-compare: $(STAMP) compiled
	$(BIN)/python bench/compare.py $(A) $(B) $(ARGS)

# Writing a journal, polling it and planning among 100,000 segments, in CPU time.
bench-journal: $(STAMP) compiled
	$(BIN)/python bench/journal.py $(ARGS)

# Every sink beside one that drops everything: ARGS="kafka nats --rows 100000" for some of them.
bench-sinks: $(STAMP) compiled servers
	$(BIN)/python bench/sinks.py $(ARGS)

# Initial snapshots beside psql's COPY: ARGS="tpch --scale 0.1" for less than 8.66 million rows. Gets TPC-H's generator from PyPI.
bench-snapshot: $(STAMP) compiled
	$(BIN)/python bench/snapshot.py $(ARGS)

# The demo in a fresh clone of HEAD on bare Debians, which stay in STRANGERS; needs root and debootstrap. ARGS choose Debians;
# COMMAND, CELLS and PYTHONS in the environment: scripts/strangers.sh.
strangers:
	@sh scripts/strangers.sh $(STRANGERS) $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The pages of docs/reference/ that are made of the code: commands, the pipeline file, and all public names of Python.
reference: $(STAMP)
	@$(BIN)/python scripts/reference.py

# Pictures of the status page in build/pictures, and the one of the README. They need a Chromium.
pictures: $(STAMP)
	@$(BIN)/python scripts/status_page.py build/pictures
	@cp build/pictures/status-light.png docs/pictures/status-page.png

# The site of docs/ in site/, in an environment of its own (requirements-docs.lock): a link that leads nowhere is an error.
docs: $(DOCS_VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --quiet
	@echo "aiorepl: the site is in site/index.html"

$(DOCS_VENV)/installed: requirements-docs.lock
	@sh scripts/venv.sh $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.lock
	@touch $@

# The locks pin everything that is installed, hash by hash, build tools included; the project itself is editable.
$(STAMP): requirements-build.lock requirements.lock pyproject.toml
	@sh scripts/install.sh $(VENV) requirements.lock compile
	@touch $@ $(DEMO_STAMP)

$(DEMO_STAMP): requirements-build.lock requirements-demo.lock pyproject.toml
	@sh scripts/install.sh $(VENV) requirements-demo.lock
	@touch $@

# Checks all locked packages for known vulnerabilities, which needs a network, and their licences. Then searches a whole run, with
# Spark's UI, for planted secrets.
audit: $(STAMP) $(AUDIT_VENV)/installed
	@sh scripts/audit.sh $(AUDIT_VENV)/bin $(BIN)/python
	$(BIN)/pytest -q tests/spark/planted_secrets.py

$(AUDIT_VENV)/installed: requirements-audit.lock
	@sh scripts/venv.sh $(AUDIT_VENV)
	@$(AUDIT_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-audit.lock
	@touch $@

# Hashes, but no index: whoever installs uses the index that is configured here.
lock: $(AUDIT_VENV)/installed
	$(AUDIT_VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --all-extras --group dev pyproject.toml -o requirements.lock --custom-compile-command "make lock"
	$(AUDIT_VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-annotate --extra demo --group build -c requirements.lock pyproject.toml -o requirements-demo.lock \
	  --custom-compile-command "make lock"
	$(AUDIT_VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-annotate --group build -c requirements.lock -o requirements-build.lock --custom-compile-command "make lock"
	$(AUDIT_VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-annotate --group docs -c requirements.lock pyproject.toml -o requirements-docs.lock --custom-compile-command "make lock"
	$(AUDIT_VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-annotate --group audit -o requirements-audit.lock --custom-compile-command "make lock"

clean:
	rm -rf $(VENV) $(DOCS_VENV) $(AUDIT_VENV) site dist build aiorepl/_compiled .mypy_cache .pytest_cache .ruff_cache .hypothesis
