"""The lake example: ``aiorepl run examples/s3.toml`` from a server into a bucket, killed, stopped and started."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import boto3
import pyarrow.parquet as pq
import pytest

from tests.waiting import until

pytestmark = pytest.mark.by_day

SCRIPT = Path(__file__).parents[2] / "scripts" / "s3.py"
RUN = ("-c", "from aiorepl.cli import main; main()", "run", "s3.toml")
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test-secret", "AWS_REGION": "us-east-1"}


@pytest.fixture
def endpoint():
    """A server with the API of S3 that has a bucket ``lake``."""
    command = [sys.executable, str(SCRIPT), "--serve", "lake"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield server.stdout.readline().strip()
        server.communicate()


def rows(client):
    """The rows of the objects in the manifest."""
    found = []
    for number in range(1, 1000):
        try:
            entry = client.get_object(Bucket="lake", Key=f"shop/_aiorepl/manifest/{number:016d}.json")
        except client.exceptions.NoSuchKey:
            break
        for listed in json.load(entry["Body"])["objects"]:
            body = client.get_object(Bucket="lake", Key=f"shop/{listed['path']}")["Body"].read()
            found += pq.read_table(io.BytesIO(body)).to_pylist()
    return found


async def test_the_example(connection, running, slot, endpoint, tmp_path):
    """Each row is there once, though the process was killed, and stopped before its flush was due."""
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test-secret",
    )
    await connection.execute("CREATE TABLE orders (id int PRIMARY KEY, price numeric(12, 2))")
    await connection.execute("CREATE PUBLICATION shop FOR ALL TABLES")
    # Amazon's own variable for a store that is not Amazon's.
    environment = {
        "LAKE_URL": "s3://lake/shop",
        "LAKE_JOURNAL": str(tmp_path),
        "AWS_ENDPOINT_URL": endpoint,
        **KEYS,
    }
    for start in range(3):
        async with running(*RUN, **environment) as example:
            await slot_is_active(connection)
            await connection.execute(
                f"INSERT INTO orders SELECT {start} * 100 + i, i FROM generate_series(1, 100) i"
            )
            # It is in the journal, and its flush is due in a minute.
            await confirmed(connection)
            if start == 1:
                example.process.kill()
                await example.process.wait()
                await slot("s3")
                continue
            # A stop makes one.
            example.process.send_signal(signal.SIGTERM)
            said, _ = await asyncio.wait_for(example.process.communicate(), 90)
            assert 0 == example.process.returncode, said.decode()

    found = await until(lambda: asyncio.to_thread(rows, client), lambda found: len(found) >= 300)
    assert Counter(start * 100 + i for start in range(3) for i in range(1, 101)) == Counter(
        row["id"] for row in found
    )
    client.close()


async def slot_is_active(connection):
    """Wait until the example reads."""
    async with asyncio.timeout(90):
        while not await connection.fetchval("SELECT active FROM pg_replication_slots WHERE slot_name = 's3'"):
            await asyncio.sleep(0.05)


async def confirmed(connection):
    """Wait until the journal has what was committed so far."""
    end = await connection.fetchval("SELECT pg_current_wal_lsn()")
    query = "SELECT confirmed_flush_lsn >= $1 FROM pg_replication_slots WHERE slot_name = 's3'"
    async with asyncio.timeout(90):
        while not await connection.fetchval(query, end):
            await asyncio.sleep(0.05)
