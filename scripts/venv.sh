#!/bin/sh
# venv.sh FOLDER: a virtual environment of the newest suitable Python, unless FOLDER is one already.
# venv.sh --check FOLDER…: an environment whose clone was moved or copied, or whose Python is gone, is no longer marked as installed:
# its programs would not start, or run the other clone's code.
set -eu
# Programs that pip installs have the folder's path in their first lines, as pip itself.
usable() {
    case $1 in
        /*) programs=$1/bin/ ;;
        *) programs=$(pwd -P)/$1/bin/ ;;
    esac
    [ -x "$1/bin/python" ] && { [ ! -f "$1/bin/pip" ] || head -n 3 "$1/bin/pip" | grep -qF "$programs"; }
}
if [ "$1" = --check ]; then
    shift
    for venv in "$@"; do
        [ ! -d "$venv" ] || usable "$venv" || rm -f "$venv"/installed "$venv"/installed-demo
    done
    exit 0
fi
venv=$1
case $PWD in
    *[\$\"\`\\:]*)
        echo "aiorepl: move the clone: the programs of pip and PostgreSQL do not start in a folder with one of \$ \" \` \\ : in its path" >&2
        exit 2
        ;;
esac
# On a file system that is mounted with noexec, everything installs and then nothing starts.
probe=./.aiorepl-starts-programs.$$
printf '#!/bin/sh\n' >"$probe"
chmod 700 "$probe"
starts=0
"$probe" 2>/dev/null || starts=$?
rm -f "$probe"
if [ "$starts" -ne 0 ]; then
    echo "aiorepl: move the clone: no programs may be started in this folder (is it mounted with noexec?)" >&2
    exit 2
fi
if usable "$venv" && "$venv/bin/python" -c 'import pip' 2>/dev/null; then
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
