#!/bin/sh
# smoke.sh PYTHON WHEEL: installs WHEEL as a user does, into a fresh virtual environment, with no compiler on PATH and packages
# as wheels alone, and runs smoke.py there.
set -eu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$1" -m venv "$scratch/venv"
installed() {
    PATH="$scratch/venv/bin" "$scratch/venv/bin/$@"
}
installed python -m pip install --quiet --disable-pip-version-check --only-binary :all: "$2"
case $2 in *-none-any.whl) form=--plain ;; *) form= ;; esac
installed python -I scripts/smoke.py $form
installed aiorepl --version
