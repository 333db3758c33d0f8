"""The file that ``aiorepl run --example`` prints: examples/aiorepl.toml, which wheels do not contain."""

from __future__ import annotations

from typing import Final

EXAMPLE: Final = """\
# The pipeline file of `aiorepl run`. Check it with `aiorepl run --check`, and its server too with `aiorepl check`.
#
# Any string may contain ${NAME} or ${NAME:-default} from the environment. "file:/run/secrets/dsn" stands for the text of
# that file. Sizes are bytes or strings such as "16MiB"; durations are seconds or strings such as "10s".

[source]
dsn = "${DATABASE_URL:-postgresql://postgres@localhost:5432/postgres}"
slot = "orders"
publication = ["shop"]          # aiorepl check prints the statement that creates it
create_slot = true
# More options: temporary, failover, upgrades, proto_version, streaming, two_phase, binary, messages, origin, interface,
# heartbeat_interval, receive_timeout, visible, visible_timeout, password_command, spill_dir, transaction_buffer_bytes

# With a journal, the slot waits for the journal alone, and each sink reads the journal at its own pace.
# [journal]
# url = "/var/lib/aiorepl/journal"      # or s3://bucket/prefix, gs://…, az://…, with config = { region = "…" }
# retention = "7d 100GB"        # delete what all consumers have passed, past this age or size (or: aiorepl journal prune)
# compact = true                # into Parquet files per table, in a process beside this one (or: aiorepl journal compact)
# [journal.selection]           # columns that never reach the journal's files, and so no sink and no lake
# drop = ["*.*.password"]
# mask = ["public.customers.email"]
# secret = "file:/run/secrets/mask"

# If the slot is created, start with the existing rows of the tables. Without a journal this also needs a folder for its
# plan: state, such as "/var/lib/aiorepl/snapshot".
# [snapshot]
# connections = 2               # that read rows; one more holds the locks
# chunk_bytes = "16MiB"         # of a table's file, read at once
# in_flight_bytes = "64MiB"     # rows in memory
# max_rows_per_second = 50000   # no limit by default; statement_timeout, lock_timeout (30) and max_wal_bytes limit it too

# [http]                        # requests that change the pipeline, on the loopback address of --http
# token = "file:/run/secrets/token"

# [pipeline]
# shutdown_timeout = 10         # how long sinks may take to finish at a stop
# buffer_bytes = "16MiB"        # between the source and the sinks
# reconnect = true              # false: exit with code 3 when the connection is lost
# wait_for_slot = true          # while another instance reads the slot, wait to take over
# publication_interval = 60     # how often to look for partitions and tables that came or went, which the stream lacks; or "off"
# on_new_table = "snapshot"     # read the rows of a table that is added to the publication; "warn" (the default), or "ignore"
# on_partition_change = "resnapshot"    # read a partitioned table again; "warn" (the default)
# on_slot_lost = "resnapshot"   # if the slot is lost, create it and read all tables again; "stop" (the default): exit with code 3
# max_resnapshots_per_day = 1   # how often that may happen
# Without a journal, state_dir is a folder for the state that a restart needs, such as the names of masked columns.
# [pipeline.batches]
# max_bytes = "1MiB"
# max_rows = 500                # no limit by default
# linger = 0.5                  # how long a batch waits for more changes; 0 by default
# flush_bytes = "64MiB"
# flush_seconds = 1
# [pipeline.retry]
# timeout = 300                 # inf: no limit
# attempts = 100
# wait_initial = 0.1
# wait_max = 30

# Any number of sinks; `aiorepl sinks` lists the types. Options that are not shown here are the sink's own.
[[sinks]]
type = "jsonl"
name = "archive"                # identifies the sink's position: do not change it
path = "events"
# rotate_bytes = "128MiB"
# on_error = "dead_letter"      # for changes that the sink rejects: halt (the default), dead_letter or skip
# dead_letters = "rejected"     # a folder for `aiorepl dlq`
# transform = "mine:transform"  # function transform in mine.py beside this file: change -> change or None; may be async
# routing_key = "{new.tenant}"  # for sinks that route by key
# schema_changes = true         # also write an event when the columns of a table change
# reselect = true               # read large values that an update did not change from the table
# publication_changes = true    # also write an event for what publication_interval notices
# Concurrent sinks such as webhook also have: concurrency (batches at a time) and order ("key" or "table").
# [sinks.batches]               # default: [pipeline.batches]; [sinks.retry] likewise
# flush_seconds = 5
# [sinks.selection]             # default: everything
# tables = ["public.*", "!public.sessions"]
# kinds = ["insert", "update", "delete"]
# drop = ["*.*.password"]
# mask = ["public.customers.email"]    # ["public.customers.email?"] if the column may be missing
# keep = ["*.audit.password"]          # exceptions from drop and mask
# secret = "file:/run/secrets/mask"
# encryption_key = "file:/run/secrets/encryption"       # for the method encrypt; a table [sinks.selection.mask] chooses methods by column
"""
