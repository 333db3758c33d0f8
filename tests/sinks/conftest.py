"""Batches without a server, a real database as a source, and fixtures that tests of several sinks share."""

from __future__ import annotations

import asyncio
import ctypes
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import trustme
from cryptography.hazmat.primitives import serialization as keys

import aiorepl
from aiorepl import Batch, SinkContext
from aiorepl.testing import LossyProxy
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream

INT4 = 23
# In the words of OpenSSL, which depend on how much of the chain a server sends.
OF_NO_AUTHORITY = (
    "(unable to get local issuer certificate|self-signed certificate in certificate chain): see the option ca"
)


class Source:
    """Transactions of a table ``items``, as batches."""

    def __init__(self) -> None:
        self.stream = Stream()
        self.table = self.stream.table("items", column("id", INT4, key=True), column("note"))
        self.context = SinkContext("s", self.stream.position)

    def batch(self, *transactions: list[int], note: str = "x") -> Batch:
        """Whole transactions of rows with these ids."""
        for ids in transactions:
            self.stream.transaction(*(self.table.insert(str(number), note) for number in ids))
        return Batch(tuple(self.stream.slices()))

    def parts(self, ids: list[int], at_once: int = 1) -> list[Batch]:
        """Return one transaction as several batches, for reads of ``at_once`` messages each; the last batch has the end alone."""
        self.stream.transaction(*(self.table.insert(str(number), "x") for number in ids))
        return [Batch((part,)) for part in self.stream.slices(at_once)]


@pytest.fixture
def source() -> Source:
    """A stream of its own."""
    return Source()


@pytest.fixture
def new_source() -> Callable[[], Source]:
    """Further streams, which begin at the same LSN."""
    return Source


class Database:
    """A database with a table ``items``, a publication ``p`` of all tables and a slot; ``run`` is ``aiorepl run``."""

    def __init__(self, dsn: str, slot: str, folder: Path, fork_server: Any) -> None:
        self._fork_server = fork_server
        self.dsn = dsn
        self.slot = slot
        self.folder = folder

    def source(self, **options: Any) -> aiorepl.Source:
        """Its slot."""
        return aiorepl.Source(self.dsn, slot=self.slot, publication="p", **options)

    async def execute(self, *statements: str) -> None:
        """Run each in a transaction of its own."""
        connection = await asyncpg.connect(self.dsn)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    async def deliver(self, sink: Any, **options: Any) -> None:
        """Everything up to now, to a sink or a delivery."""
        source = self.source(**options.pop("source", {}))
        await aiorepl.Pipeline(source, {"sink": sink}, until="now", **options).run()

    async def run(self, options: dict[str, Any]) -> asyncio.subprocess.Process:
        """``aiorepl run`` in a process of its own, with these options of the sink."""
        values = "".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items())
        path = self.folder / "aiorepl.toml"
        path.write_text(
            f'[source]\ndsn = "{self.dsn}"\nslot = "{self.slot}"\npublication = "p"\n'
            f'[[sinks]]\nname = "sink"\n{values}'
        )
        command = Path(sys.executable).with_name("aiorepl")
        return await self._fork_server.start(command, "run", path, stderr=asyncio.subprocess.DEVNULL)

    async def killed(self, process: asyncio.subprocess.Process) -> None:
        """Kill the process, and wait until the server has noticed: it may hold the slot for a moment longer."""
        process.kill()
        await process.wait()
        connection = await asyncpg.connect(self.dsn)
        async with asyncio.timeout(90):
            while await connection.fetchval(
                "SELECT active FROM pg_replication_slots WHERE slot_name = $1", self.slot
            ):
                await asyncio.sleep(0.01)
        await connection.close()

    async def killed_under_load(
        self, options: dict[str, Any], count: Callable[[], Awaitable[int]], times: int = 3
    ) -> int:
        """Kill ``aiorepl run`` in the middle of a load, some times; how many rows were committed."""
        rows = 0
        for _ in range(times):
            process = await self.run(options)
            before = await count()
            async with asyncio.timeout(90):
                while await count() <= before + 20:
                    await self.execute(*(f"INSERT INTO items VALUES ({rows + n}, 'x')" for n in range(20)))
                    rows += 20
            await self.killed(process)
        return rows


@pytest.fixture
async def items(database: str, slot_name: str, tmp_path: Path, fork_server: Any) -> Database:
    """A published table."""
    found = Database(database, slot_name, tmp_path, fork_server)
    await found.execute(
        "CREATE TABLE items (id int PRIMARY KEY, note text)",
        "CREATE PUBLICATION p FOR ALL TABLES",
        f"SELECT pg_create_logical_replication_slot('{slot_name}', 'pgoutput')",
    )
    return found


@pytest.fixture
def lossy() -> Iterator[Callable[..., LossyProxy]]:
    """``lossy(target, answer=…)``: a proxy in front of a target that loses answers on request."""
    made: list[LossyProxy] = []

    def new(target: tuple[str, int] | str, **options: Any) -> LossyProxy:
        made.append(LossyProxy(target, **options))
        return made[-1]

    yield new
    for proxy in made:
        proxy.close()


def _die_with_us() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@pytest.fixture(scope="session")
def spawn() -> Callable[..., subprocess.Popen[Any]]:
    """``subprocess.Popen`` of a server, which ends with the thread that started it, killed or not."""
    return partial(subprocess.Popen, preexec_fn=_die_with_us)


def _write(folder: Path, name: str, leaf: trustme.LeafCert, password: bytes = b"") -> None:
    """Write a certificate chain, and its key as PKCS #8, which Java needs."""
    key = keys.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    lock = keys.BestAvailableEncryption(password) if password else keys.NoEncryption()
    chain = b"".join(pem.bytes() for pem in leaf.cert_chain_pems)
    folder.joinpath(f"{name}.pem").write_bytes(chain)
    folder.joinpath(f"{name}.key").write_bytes(
        key.private_bytes(keys.Encoding.PEM, keys.PrivateFormat.PKCS8, lock)
    )


def write_certificates(folder: Path) -> None:
    """Write the files of the fixture ``certificates``."""
    ours, strangers = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(folder / "ca.pem")
    strangers.cert_pem.write_to_path(folder / "strangers.pem")
    _write(folder, "server", ours.issue_cert("localhost", common_name="localhost"))
    _write(folder, "client", ours.issue_cert("client@localhost", common_name="client"))
    _write(folder, "locked", ours.issue_cert("client@localhost", common_name="client"), b"open")
    _write(folder, "stranger", strangers.issue_cert("client@localhost", common_name="client"))


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with certificates and their keys.

    ``ca.pem`` is an authority, which has signed ``server.pem`` for localhost, ``client.pem``, and ``locked.pem``, whose
    key has the password "open"; ``strangers.pem`` is another, which has signed ``stranger.pem``.
    """
    folder = tmp_path_factory.mktemp("certificates")
    write_certificates(folder)
    return folder


@pytest.fixture
def files(certificates: Path) -> Callable[..., dict[str, str]]:
    """``files(ca="ca.pem")``: options that name files of that folder."""

    def files(**names: str) -> dict[str, str]:
        return {option: str(certificates / name) for option, name in names.items()}

    return files


@pytest.fixture(params=["none", "stranger"])
def unknown_client(request: pytest.FixtureRequest, files: Callable[..., dict[str, str]]) -> dict[str, str]:
    """Options by which a server that wants a certificate sees none, or one of an authority that it does not know."""
    names = {"certificate": "stranger.pem", "key": "stranger.key"} if request.param == "stranger" else {}
    return files(ca="ca.pem", **names)


@pytest.fixture(
    params=[
        ("localhost", "strangers.pem", OF_NO_AUTHORITY),
        ("localhost", None, OF_NO_AUTHORITY),
        ("127.0.0.1", "ca.pem", "IP address mismatch.* use the server's name from its certificate"),
    ],
    ids=["other", "system", "name"],
)
def unknown_server(
    request: pytest.FixtureRequest, files: Callable[..., dict[str, str]]
) -> tuple[str, dict[str, str], str]:
    """A host, options with which its certificate is invalid, and the expected error."""
    host, ca, says = request.param
    return host, files(ca=ca) if ca else {}, says


@pytest.fixture
def refused(request: pytest.FixtureRequest) -> Callable[..., Awaitable[None]]:
    """Expect an error of ``open`` of this kind and text, without the module's ``SECRET``."""

    async def refused(sink: Any, source: Source, kind: Any, match: str) -> None:
        with pytest.raises(kind, match=match) as raised:
            await sink.open(source.context)
        await sink.close()
        assert request.module.SECRET not in f"{raised.value!r} {raised.value.__cause__!r} {sink!r}"

    return refused
