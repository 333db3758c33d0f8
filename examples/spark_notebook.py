# %% [markdown]
"""
# From PostgreSQL to Delta tables to a chart

Open this file as a notebook in VS Code, PyCharm or Jupyter with jupytext, or run it as a program. Run it again, and it goes on
where it was: the pipeline at its slot, the mirror at its checkpoint.

    pip install '.[spark]' matplotlib
    export DATABASE_URL=postgresql://user@host/database
"""

# %%
import os
from pathlib import Path

import asyncpg
from anyio.from_thread import start_blocking_portal
from deltalake import DeltaTable
from matplotlib.dates import ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

import aiorepl
from aiorepl.spark import MirroredTables, local_session, mirror

DSN = os.environ["DATABASE_URL"]
FOLDER = Path(os.environ.get("FOLDER", "notebook"))

# %% [markdown]
# A shop with orders. Leave this cell out if you have tables and a publication.

# %%
SHOP = """
CREATE TABLE orders (id int PRIMARY KEY, ordered_on date, region text, status text, amount numeric(10, 2));
CREATE PUBLICATION shop FOR TABLE orders;
INSERT INTO orders
  SELECT i, day, (ARRAY['north', 'south', 'west'])[1 + i / 84 % 3], CASE WHEN i % 17 = 0 THEN 'cancelled' ELSE 'paid' END,
    (40 + i / 84 % 3 * 25 + i % 84 * 0.6) * (CASE WHEN extract(isodow FROM day) > 5 THEN 1.6 ELSE 1 END)
  FROM generate_series(0, 2519) i, LATERAL (SELECT date '2026-08-31' + i % 84) AS each (day);
"""


async def create_shop() -> None:
    """Create the tables, unless they exist."""
    connection = await asyncpg.connect(DSN)
    try:
        if await connection.fetchval("SELECT to_regclass('orders')") is None:
            await connection.execute(SHOP)
    finally:
        await connection.close()


# A notebook runs an event loop already, so coroutines run in the loop of another thread.
with start_blocking_portal() as portal:
    portal.call(create_shop)

# %% [markdown]
# ## Capture
#
# The first run reads all rows. Each run writes the changes up to now into the journal, and ends.

# %%


async def capture() -> None:
    """Bring the journal up to date."""
    source = aiorepl.Source(DSN, slot="notebook", publication="shop", create_slot=True)
    await aiorepl.Pipeline(source, journal=FOLDER / "journal", snapshot=True, until="now").run()


with start_blocking_portal() as portal:
    portal.call(capture)

# %% [markdown]
# ## Mirror
#
# `availableNow` ends the query when it has read everything. Without a trigger, it goes on.

# %%
spark = local_session()
mirror(
    spark, FOLDER / "journal", ["public.*"], FOLDER / "lake", trigger={"availableNow": True}
).awaitTermination()
lake = MirroredTables(FOLDER / "lake")
print(lake.lsn, lake.tables)

# %% [markdown]
# ## Query
#
# Spark reads the Parquet files of one version of the table. In a session with Delta's jars, use `spark.read.format("delta")`.

# %%
version = lake.as_of()["public.orders"]
spark.read.parquet(*DeltaTable(version.path, version=version.version).file_uris()).createOrReplaceTempView(
    "orders"
)
revenue = spark.sql(
    """
    SELECT date_trunc('week', ordered_on) AS week, region, sum(amount) AS revenue
    FROM orders WHERE status = 'paid' GROUP BY week, region ORDER BY week
    """
).toArrow()

# %% [markdown]
# ## Chart

# %%
figure = Figure(figsize=(9, 4.5), layout="constrained")
axes = figure.subplots()
weeks = sorted(set(revenue["week"].to_pylist()))
by_region: dict[str, list[float]] = {
    region: [0.0] * len(weeks) for region in sorted(set(revenue["region"].to_pylist()))
}
for row in revenue.to_pylist():
    by_region[row["region"]][weeks.index(row["week"])] = float(row["revenue"])
axes.stackplot(
    weeks, list(by_region.values()), labels=list(by_region), colors=["#4c72b0", "#dd8452", "#55a868"]
)
axes.set_title(f"Revenue by week, as of {lake.lsn}", loc="left")
axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
axes.xaxis.set_major_formatter(ConciseDateFormatter(axes.xaxis.get_major_locator()))
axes.margins(x=0)
axes.spines[["top", "right"]].set_visible(False)
axes.legend(loc="upper left", ncols=3, frameon=False)
figure.savefig(FOLDER / "revenue.png", dpi=120)
figure  # noqa: B018 - a notebook shows it
