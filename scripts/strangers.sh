#!/bin/sh
# strangers.sh FOLDER [SUITE…]: runs COMMAND (make demo) on bare Debians, in a fresh clone of HEAD, and prints the seconds to
# the demo's first line, to "Equal.", and to the end. FOLDER keeps the Debians, by default bookworm (Python 3.11), trixie (3.13) and
# sid (3.14), or none if there are PYTHONS; each takes 400 MB. Needs root, debootstrap, unshare and Linux. What each cell of the matrix is:
#
#   root    as root, in /root/…, which only root may enter; the path has a space and a letter that is not ASCII
#   user    as another user, with a HOME that is not writable, in such a path; with another SPARK_HOME, JAVA_HOME, PYTHONPATH and
#           HADOOP_CONF_DIR in the environment
#   tools   as root, with a C compiler and Java installed; only if CELLS has it, because they stay installed
#
# CELLS="root user" chooses them. PYTHONS="/path/python3.12 …" adds interpreters of this machine, in a folder of mode 0700.
set -eu
folder=${1:?strangers.sh FOLDER [SUITE…]}
shift
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
here=$(pwd)
cells=${CELLS:-root user}
command=${COMMAND:-make demo}
packages=python3,python3-venv,make,git,ca-certificates
status=0
test $# -gt 0 || test -n "${PYTHONS-}" || set -- bookworm trixie sid

# Runs the command with its output in the log $1, and prints a line of the matrix with the name $2.
cell() {
    log=$1 name=$2
    shift 2
    began=$(date +%s)
    "$@" </dev/null 2>&1 | while IFS= read -r line; do
        printf '%4d %s\n' $(($(date +%s) - began)) "$line"
    done >"$log"
    first=$(sed -n 's/^ *\([0-9]*\) PostgreSQL .* is running.*/\1/p' "$log")
    last=$(sed -n 's/^ *\([0-9]*\) Equal\.$/\1/p' "$log")
    result=$(sed -n 's/^ *[0-9]* exit code //p' "$log")
    test "$result" = 0 || status=1
    printf '%-24s exit code %s, first line after %s s, "Equal." after %s s, end after %s s; load %s\n' "$name" "${result:-?}" \
        "${first:-?}" "${last:-?}" $(($(date +%s) - began)) "$(cut -d' ' -f1 /proc/loadavg)"
}

# In the Debian $1 as $2, with the home $3 and more variables: nothing of this environment but what a package registry needs.
inside() {
    root=$1 user=$2 home=$3
    shift 3
    unshare --mount --pid --fork --kill-child --propagation private sh -c '
        root=$1 user=$2
        shift 2
        mount -t proc proc "$root/proc"
        mkdir -p "$root/dev/shm"
        mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
        exec chroot --userspec="$user:" "$root" /usr/bin/env -i "$@"
    ' sh "$root" "$user" HOME="$home" PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin "$@"
}

registry() {
    env | grep -E '^(PIP_(INDEX_URL|EXTRA_INDEX_URL|CERT|DEFAULT_TIMEOUT|TRUSTED_HOST)|SSL_CERT_FILE|REQUESTS_CA_BUNDLE|https?_proxy|no_proxy|HTTPS?_PROXY|NO_PROXY)=' || true
}

for suite in "$@"; do
    root=$folder/$suite
    if [ ! -x "$root/usr/bin/git" ]; then
        echo "aiorepl: a bare $suite in $root" >&2
        debootstrap --variant=minbase --include=$packages "$suite" "$root" >"$folder/$suite.debootstrap.log"
    fi
    for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
        test ! -f "$file" || cp -L "$file" "$root$file"
    done
    grep -q ^stranger: "$root/etc/passwd" || chroot "$root" useradd --create-home stranger
    mkdir -p "$root/opt/other"
    for module in click orjson pyspark pytest; do
        echo 'raise SystemExit("PYTHONPATH of the environment is used")' >"$root/opt/other/$module.py"
    done
    for each in $cells; do
        user=root place="/root/ein Pfad für $each" home=/root more=
        case $each in
            user)
                user=stranger place="/home/stranger/ein Pfad für $each" home=/
                more='PYTHONPATH=/opt/other SPARK_HOME=/opt/other JAVA_HOME=/opt/other HADOOP_CONF_DIR=/opt/other'
                ;;
            tools)
                inside "$root" root /root DEBIAN_FRONTEND=noninteractive sh -c 'apt-get update -q && apt-get install -qy gcc libc6-dev \
                    python3-dev default-jre-headless' >"$folder/$suite.apt.log" 2>&1
                ;;
        esac
        rm -rf "$root$place" "$root/root/.cache"
        mkdir -m 700 "$root$place"
        git clone --quiet --no-hardlinks "$here" "$root$place/clone"
        test "$user" = root || chroot "$root" chown -R stranger: "$place"
        # shellcheck disable=SC2046,SC2086 - words
        cell "$folder/$suite-$each.log" "$suite, $each" inside "$root" "$user" "$home" $(registry) $more PLACE="$place/clone" \
            COMMAND="$command" sh -c 'cd "$PLACE" && sh -c "$COMMAND"; echo "exit code $?"'
        rm -rf "$root$place"
    done
done
for python in ${PYTHONS-}; do
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/aiorepl für Fremde.XXXXXX")
    git clone --quiet "$here" "$scratch/clone"
    mkdir "$scratch/home"
    # shellcheck disable=SC2046 - words
    cell "$folder/$(basename "$python").log" "$python" env -i $(registry) HOME="$scratch/home" PATH=/usr/bin:/bin PYTHON="$python" \
        COMMAND="$command" sh -c 'cd "$1" && sh -c "$COMMAND"; echo "exit code $?"' sh "$scratch/clone"
    rm -rf "$scratch"
done
exit $status
