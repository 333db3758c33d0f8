#!/bin/sh
# release.sh BIN AUDIT_BIN FOLDER: checks what a release needs, and publishes nothing. BIN is where the project's Python is, AUDIT_BIN
# where twine and cibuildwheel are. The distributions are in FOLDER, which is emptied first. Every check runs.
set -u
bin=$1
audit=$2
folder=$3
failed=
check() {
    echo "aiorepl: $1" >&2
    shift
    "$@" || failed="$failed
  $*"
}
identifiers() {
    for platform in linux macos; do
        "$audit/cibuildwheel" --print-build-identifiers --platform "$platform" . || return
    done
}
check "one version in pyproject.toml, CITATION.cff, CHANGELOG.md and the tag" "$bin/python" scripts/version.py
check "source distribution, and the wheel from it" sh scripts/wheel.sh "$bin/python" "$folder"
check "the wheel in a fresh environment without a compiler" sh scripts/smoke.sh "$bin/python" "$folder"/*.whl
check "metadata and README as PyPI reads them" "$audit/twine" check --strict "$folder"/*
check "the README's links and pictures are absolute" "$bin/pytest" -q -n0 tests/documents/test_links.py
check "the wheels that cibuildwheel would build" identifiers
if [ -n "$failed" ]; then
    echo "aiorepl: not ready for a release:$failed" >&2
    exit 1
fi
echo "aiorepl: ready: push the tag v$("$bin/python" -c 'import importlib.metadata as m; print(m.version("aiorepl"))')" >&2
