#!/bin/sh
# install.sh VENV LOCK: the packages that LOCK pins, hash by hash, and this project as an editable install, into VENV.
set -eu
venv=$1
lock=$2
step() {
    echo "aiorepl: $1" >&2
}
pip() {
    "$venv/bin/python" -m pip "$@" --quiet --disable-pip-version-check
}
step "1/3 virtual environment in $venv"
sh scripts/venv.sh "$venv"
step "2/3 packages of $lock (Spark alone is 400 MB)"
pip install --require-hashes -r "$lock"
if command -v "${CC:-cc}" >/dev/null; then
    step "3/3 aiorepl itself; compiling its hot path takes about half a minute"
else
    step "3/3 aiorepl itself, in plain Python, because there is no C compiler"
fi
pip install --no-deps --no-build-isolation -e .
