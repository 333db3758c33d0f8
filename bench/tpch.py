"""TPC-H's tables, loaded from the files of ``tpchgen-cli`` (PyPI)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from measuring import Bench

_TABLES: Final = {
    "region": "r_regionkey int PRIMARY KEY, r_name char(25), r_comment varchar(152)",
    "nation": "n_nationkey int PRIMARY KEY, n_name char(25), n_regionkey int, n_comment varchar(152)",
    "supplier": "s_suppkey int PRIMARY KEY, s_name char(25), s_address varchar(40), s_nationkey int, s_phone char(15), "
    "s_acctbal numeric(15,2), s_comment varchar(101)",
    "customer": "c_custkey int PRIMARY KEY, c_name varchar(25), c_address varchar(40), c_nationkey int, c_phone char(15), "
    "c_acctbal numeric(15,2), c_mktsegment char(10), c_comment varchar(117)",
    "part": "p_partkey int PRIMARY KEY, p_name varchar(55), p_mfgr char(25), p_brand char(10), p_type varchar(25), p_size int, "
    "p_container char(10), p_retailprice numeric(15,2), p_comment varchar(23)",
    "partsupp": "ps_partkey int, ps_suppkey int, ps_availqty int, ps_supplycost numeric(15,2), ps_comment varchar(199), "
    "PRIMARY KEY (ps_partkey, ps_suppkey)",
    "orders": "o_orderkey bigint PRIMARY KEY, o_custkey int, o_orderstatus char(1), o_totalprice numeric(15,2), "
    "o_orderdate date, o_orderpriority char(15), o_clerk char(15), o_shippriority int, o_comment varchar(79)",
    "lineitem": "l_orderkey bigint, l_partkey int, l_suppkey int, l_linenumber int, l_quantity numeric(15,2), "
    "l_extendedprice numeric(15,2), l_discount numeric(15,2), l_tax numeric(15,2), l_returnflag char(1), "
    "l_linestatus char(1), l_shipdate date, l_commitdate date, l_receiptdate date, l_shipinstruct char(25), "
    "l_shipmode char(10), l_comment varchar(44), PRIMARY KEY (l_orderkey, l_linenumber)",
}


def load(bench: Bench, scale: float, folder: Path) -> int:
    """Create and fill the tables; return the number of rows.

    :param scale: the scale factor; 1 is 8.66 million rows.
    :param folder: where the generator is installed, and its files are kept.
    """
    files = folder / f"sf{scale:g}"
    if not (files / "lineitem.csv").exists():
        subprocess.run([_generator(folder), "csv", "-s", f"{scale:g}", f"--output-dir={files}"], check=True)
    total = 0
    for name, columns in _TABLES.items():
        # Without the key while it is filled.
        fields, _, key = columns.partition(", PRIMARY KEY (")
        bench.psql(f"CREATE TABLE {name} ({fields})")
        bench.psql(f"\\copy {name} FROM '{files / name}.csv' (FORMAT csv, HEADER)")
        if key:
            bench.psql(f"ALTER TABLE {name} ADD PRIMARY KEY ({key}")
        total += int(bench.psql(f"SELECT count(*) FROM {name}"))
    return total


def _generator(folder: Path) -> Path:
    """Install the generator into ``folder``, unless it is there or on the path."""
    if (found := shutil.which("tpchgen-cli")) is not None:
        return Path(found)
    program = folder / "tpchgen" / "bin" / "tpchgen-cli"
    if not program.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        lock = Path(__file__).with_name("tpchgen.lock")
        subprocess.run(
            [*command, "-r", str(lock), "--target", str(folder / "tpchgen")], check=True, env={**os.environ}
        )
    return program
