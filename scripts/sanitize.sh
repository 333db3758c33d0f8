#!/bin/sh
# The tests of what compiles, with every read and write of memory checked: sanitize.sh VENV [pytest's arguments].
# A wheel is built with AddressSanitizer and UndefinedBehaviorSanitizer, and unpacked where the tests find it first: nothing
# that is installed is touched. Wants gcc.
set -e
bin=$1/bin
shift
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
CC=gcc CFLAGS='-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1' \
  LDFLAGS='-fsanitize=address,undefined' AIOREPL_PURE_PYTHON=0 \
  "$bin/python" -m hatchling build --target wheel --directory "$scratch"
"$bin/python" -m zipfile -e "$scratch"/*.whl "$scratch/wheel"
# Without servers, which would be preloaded as well, and do not all start so.
test $# -gt 0 || set -- --ignore=tests/values/test_live.py --ignore=tests/wire/test_live.py \
  tests/wire tests/pgoutput tests/transactions/model tests/transactions/test_*.py tests/formats tests/values tests/fuzz/test_decoder.py
# Python keeps what it allocated until it ends, and has its own allocator, which hides what lies behind an object. Reports go
# to files, for pytest catches what is printed, and dies with the process.
status=0
LD_PRELOAD=$(gcc -print-file-name=libasan.so) ASAN_OPTIONS="detect_leaks=0:log_path=$scratch/report" \
  UBSAN_OPTIONS="print_stacktrace=1:log_path=$scratch/report" PYTHONMALLOC=malloc \
  AIOREPL_PURE_PYTHON=0 PYTHONSAFEPATH=1 PYTHONPATH="$scratch/wheel" "$bin/pytest" -p no:cacheprovider --timeout=0 "$@" || status=$?
cat "$scratch"/report* 2>/dev/null || exit "$status"
exit 1
