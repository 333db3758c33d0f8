#!/bin/sh
# install.sh VENV LOCK [compile]: installs the packages that LOCK pins, hash by hash, and this project as an editable install, into
# VENV. Several pip processes run at the same time, because one pip process uses one core: two install half of the wheels each, and
# another installs the build tools and then the packages that need a build. With "compile", the hot path is compiled, too.
set -eu
venv=$1
lock=$2
compile=${3:-}
running=
trap 'test -z "$running" || kill $running 2>/dev/null || true; rm -f "$venv"/part-*.lock' EXIT
trap 'exit 130' INT TERM
step() {
    echo "aiorepl: $1" >&2
}
# exec replaces the subshell with pip, so that a signal to the background process reaches pip. With --no-compile, a module is compiled to
# bytecode when it is first imported; most modules of Spark never are.
pip() {
    exec "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-compile "$@"
}
# PySpark and nkeys are source distributions. pip builds them with the pinned setuptools, through PEP 517, and does not compress PySpark's
# 450 MB, because the wheel is unpacked at once.
export PIP_USE_PEP517=1 DIST_EXTRA_CONFIG="$PWD/scripts/sdists.cfg"
# Only one installation at a time, also with `make -j8 demo test` or in two terminals. The lock on this folder is released when this shell
# and all its child processes have ended. Some network file systems have no such locks: an installation there does not wait.
exec 9<.
"${PYTHON:-python3}" -c '
import fcntl
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("aiorepl: waiting: another process installs into this folder", flush=True)
    fcntl.flock(9, fcntl.LOCK_EX)
' >&2 2>/dev/null || true
step "1/2 virtual environment in $venv"
sh scripts/venv.sh "$venv"
step "2/2 packages of $lock (PySpark alone is 450 MB), and aiorepl itself${compile:+; the hot path is compiled, if there is a C compiler}"
# In a lock, each package starts with a line that is not indented. Each package is in exactly one part, so that no two pip processes
# write the same files. The dependencies of a package may be in another part, so pip gets --no-deps.
awk -v folder="$venv" '
    FNR == NR { if (/^[^ #]/) is_build_tool[$1] = 1; next }
    /^[^ #]/ { part = $1 in is_build_tool ? "" : $1 ~ /^(nkeys|pyspark)==/ ? "built" : "wheels-" number++ % 2 }
    part { print >(folder "/part-" part ".lock") }
' requirements-build.lock "$lock"
begin() {
    (pip "$@") &
    running="$running $!"
}
for part in "$venv"/part-wheels-*.lock; do
    begin --only-binary :all: --require-hashes -r "$part" --no-deps
done
(pip --require-hashes -r requirements-build.lock)
if [ -n "$compile" ]; then
    "$venv/bin/python" hatch_build.py &
    running="$running $!"
fi
if [ -e "$venv/part-built.lock" ]; then
    begin --require-hashes -r "$venv/part-built.lock" --no-deps
fi
(AIOREPL_PURE_PYTHON=1 pip --no-deps -e .) &
running="$running $!"
for process in $running; do
    wait "$process"
done
running=
# Make the paths of the editable install relative if they are not ASCII. Under a locale that is not installed, such as one that ssh
# passes on, Python 3.11 and 3.12 read these paths as ASCII, and do not start.
"$venv/bin/python" - <<'END'
import os
import sysconfig
from pathlib import Path

site = sysconfig.get_path("purelib")
for file in Path(site).glob("*editable*aiorepl*.pth"):
    folders = file.read_text(encoding="utf-8").split("\n")
    file.write_text("\n".join(each if each.isascii() else os.path.relpath(each, site) for each in folders), encoding="utf-8")
END
