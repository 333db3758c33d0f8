#!/bin/sh
# start.sh: runs a master and two workers on this machine until Ctrl-C.
set -eu
host=${SPARK_LOCAL_IP:-127.0.0.1}
port=${SPARK_MASTER_PORT:-7077}
home=${SPARK_HOME:-$(python3 -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')}
processes=
trap 'kill $processes' EXIT
trap 'exit 130' INT TERM
"$home/bin/spark-class" org.apache.spark.deploy.master.Master --host "$host" --port "$port" &
processes=$!
for worker in 1 2; do
    "$home/bin/spark-class" org.apache.spark.deploy.worker.Worker --cores 1 --memory 1g --work-dir "work/$worker" "spark://$host:$port" &
    processes="$processes $!"
done
wait
