#!/bin/sh
# submit.sh MASTER [OPTION...]: submits the mirror of mirror.toml with the environment that pack.sh has made.
# OPTIONs are those of `aiorepl spark mirror`, such as --once. JOURNAL and LAKE are URLs or folders that all machines have.
set -eu
cd "$(dirname "$0")"
master=$1
shift
home=${SPARK_HOME:-$(python3 -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')}
# Spark unpacks the archive in each executor's folder. The driver plans with the same path, so it needs ./environment as well.
export PYSPARK_PYTHON=./environment/bin/python
exec "$home/bin/spark-submit" --master "$master" --archives environment.tar.gz#environment \
    --conf spark.executor.cores=1 --conf spark.executor.memory=512m ${SPARK_OPTIONS:-} \
    mirror.py "$@" mirror.toml
