#!/bin/sh
# pack.sh [REQUIREMENT...]: makes ./environment, which the driver uses, and environment.tar.gz, the same for the executors.
# A virtual environment works in any folder, but its python is a link: the nodes need the same Python at the same path.
# They have Spark's own pyspark.
set -eu
python3 -m venv --clear environment
environment/bin/pip install --quiet "${@:-aiorepl}" pyarrow deltalake "pandas<3"
tar -czf environment.tar.gz -C environment .
