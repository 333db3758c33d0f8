"""Names that documents use without defining them, for the type checker; ``conftest.py`` has values."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import httpx2
from fastapi import FastAPI
from opentelemetry.metrics import Meter
from pyspark.sql import DataFrame, SparkSession

import aiorepl
from aiorepl.formats.format import Format
from aiorepl.formats.routing import Routing

dsn: str
source: aiorepl.Source
sink: aiorepl.Sink
sinks: Sequence[aiorepl.Sink]
pipeline: aiorepl.Pipeline
context: aiorepl.SinkContext
batch: aiorepl.Batch
change: aiorepl.Change
stop: list[Callable[[], object]]
serve: Callable[[], Coroutine[Any, Any, None]]
app: FastAPI
meter: Meter
form: Format
routing: Routing
send: Callable[..., Awaitable[object]]
publish: Callable[..., Awaitable[object]]
client: httpx2.AsyncClient
spark: SparkSession
changes: Any
orders: DataFrame
