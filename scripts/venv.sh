#!/bin/sh
# venv.sh FOLDER: a virtual environment of the newest suitable Python, unless FOLDER is one already.
set -eu
venv=$1
case $PWD in
    *[\$\"\`\\:]*)
        echo "aiorepl: move the clone: the programs of pip and PostgreSQL do not start in a folder with one of \$ \" \` \\ : in its path" >&2
        exit 2
        ;;
esac
if [ -x "$venv/bin/python" ] && "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    exit 0
fi
if [ -n "${PYTHON-}" ]; then
    set -- "$PYTHON"
else
    set -- python3 python3.14 python3.13 python3.12 python3.11
fi
for python in "$@"; do
    if "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then
        if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
            echo "aiorepl: $python has no venv module: install it (Debian: apt install python3-venv)" >&2
            exit 2
        fi
        exec "$python" -m venv --clear "$venv"
    fi
done
if [ -n "${PYTHON-}" ]; then
    echo "aiorepl: PYTHON=$PYTHON is no Python 3.11 to 3.14" >&2
else
    echo "aiorepl: no Python 3.11 to 3.14 found: install one, or say which with PYTHON=/path/to/python make …" >&2
fi
exit 2
