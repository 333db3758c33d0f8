#!/bin/sh
# wheel.sh PYTHON FOLDER: builds the source distribution, and the wheel from it, into FOLDER, which is emptied first.
# PYTHON has the build tools of requirements-build.lock. Environment variables for the compiler count, as in hatch_build.py.
set -eu
python=$1
rm -rf "$2"
mkdir -p "$2"
folder=$(cd "$2" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$python" -m hatchling build --target sdist --directory "$folder"
tar -xzf "$folder"/*.tar.gz -C "$scratch"
case $python in /*) ;; *) python=$PWD/$python ;; esac
cd "$scratch"/*/
"$python" -m hatchling build --target wheel --directory "$folder"
