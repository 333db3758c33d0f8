"""The file that ``aiorepl spark mirror --example`` prints: examples/mirror.toml, which wheels do not contain."""

from __future__ import annotations

from typing import Final

EXAMPLE: Final = """\
# The file of `aiorepl spark mirror`. Check it with `aiorepl spark mirror --check`.
#
# Any string may contain ${NAME} or ${NAME:-default} from the environment. "file:/run/secrets/key" stands for the text of that
# file. Sizes are bytes or strings such as "256MiB"; durations are seconds or strings such as "10s".

[journal]
url = "/var/lib/aiorepl/journal"        # or s3://bucket/prefix, gs://…, az://…, with config = { region = "…" }

[mirror]
tables = ["public.*"]                   # patterns; "!public.sessions" excludes; later tables are picked up
target = "/var/lib/aiorepl/lake"        # a Delta table for each: target/schema/table
# target = { url = "s3://bucket/lake", config = { region = "eu-central-1" } }
mode = "current"                        # history (SCD2), soft_delete, changelog; or by pattern, as below
# on_error = "set_aside"                # continue without a table that cannot be written; default: halt
# whole_transactions = true             # never show a part of a transaction, however large it is
# deletion_vectors = true               # mark rows that change; false: write files again; default: "auto", what is cheaper
# starting_position = "earliest"        # of a new mirror: earliest, latest or an LSN; the default is the journal's beginning
# max_bytes = "256MiB"                  # of the journal in a batch
# partition_bytes = "32MiB"             # of the journal in a task
# unrepresentable = "null"              # for values that no column can hold, such as infinite dates; the default is error
# checkpoint = "/var/lib/aiorepl/lake/_checkpoint"
# staging = "/var/lib/aiorepl/staging"  # as executors and the driver see it; the default is in the checkpoint

# [mirror.mode]                         # instead of mode above: the first pattern that matches a table counts
# "*.audit_*" = "changelog"
# "*.*" = "current"

# [mirror.keys]                         # for tables under REPLICA IDENTITY FULL
# "public.prices" = ["product", "valid_from"]

# [mirror.types]                        # types of columns, by pattern: string, double, timestamp, decimal(p,s)
# "public.orders.amount" = "decimal(20,4)"

# [mirror.layout."public.orders"]
# partition_by = ["region"]
# cluster_by = ["customer"]

# [mirror.selection]                    # columns that do not enter the lake, as in the selection of a sink
# drop = ["*.*.password"]
# mask = ["public.customers.email"]
# secret = "file:/run/secrets/mask"

# [delta]                               # Delta tables of several mirrors; target then has only this mirror's state
# root = "/var/lib/aiorepl/shared"      # a Delta table for each: root/schema/table
# source = "berlin"                     # the column source_column, "_source" by default, has it in each row of this mirror

# [iceberg]                             # Iceberg tables instead of Delta; target then has only the mirror's state
# catalog = "lake"                      # a pyiceberg catalog; its properties are below, in ~/.pyiceberg.yaml or in the environment
# prefix = "mirror_"                    # each schema has a namespace with its name after this prefix
# retain = 86400                        # how many seconds snapshots stay readable; more snapshots make commits slower
# properties = { type = "rest", uri = "https://catalog:8181", token = "file:/run/secrets/catalog" }

[spark]
cores = 2                               # of a local Spark
memory = "1g"
# interval = "10s"                      # between batches; the default is none
# master = "spark://host:7077"          # a cluster, instead of cores and memory
# [spark.conf]
# "spark.executor.memory" = "4g"

# [retry]                               # of a query that failed
# timeout = 300                         # of back-off without any progress; inf: no limit
# wait_initial = 0.1
# wait_max = 30
"""
