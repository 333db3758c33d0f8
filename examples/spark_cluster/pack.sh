#!/bin/sh
# pack.sh [REQUIREMENT...]: makes ./environment, which the driver uses, and environment.tar.gz, the same for the executors.
# A virtual environment works in any folder, but its python is a link: the nodes need the same Python at the same path.
# They have Spark's own pyspark, so this installs what aiorepl[spark] needs except pyspark. REQUIREMENTs name aiorepl and other
# extras. The default is this clone with http, which submit.sh's --http needs, and s3, for a journal in an object store.
set -eu
python3 -m venv --clear environment
environment/bin/pip install --quiet "${@:-../..[http,s3]}" "pyarrow>=18" "deltalake>=1.0" "pyroaring>=1.0" "pandas>=2.2,<3"
tar -czf environment.tar.gz -C environment .
