"""Settings and fixtures for all tests: options, temporary files in memory, the selection of the tests.

Plugins have the other fixtures, by topic: ``servers``, ``clusters``, ``loops``, ``forked``, ``forked_python``, ``object_stores``.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import re
import socket
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from aiorepl.source.feedback import schedule
from tests import today

pytest_plugins = [
    "tests.clusters",
    "tests.forked",
    "tests.forked_python",
    "tests.loops",
    "tests.object_stores",
    "tests.servers",
]

# The same examples every time, and as long as they take: what fails here fails everywhere. New ones, and many more of them, are
# looked for with --hypothesis-profile=search.
settings.register_profile("search", deadline=None, print_blob=True, max_examples=2000)
settings.load_profile("ci")

# Databases and journals are thousands of small files, which take a tenth of the time in memory. Containers often have 64 MB.
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 4 << 30


@pytest.fixture(scope="session")
def reseal() -> Callable[[Path, str, str], None]:
    """Replaces text in a small file of a journal, which gets the checksum of what it has then."""

    def replaced(path: Path, old: str, new: str) -> None:
        body = path.read_bytes().partition(b"\n")[0].replace(old.encode(), new.encode())
        path.write_bytes(b"%b\n%08x\n" % (body, zlib.crc32(body)))

    return replaced


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """``free_port()``: one for a server that cannot choose its own.

    The kernel gives none of these to whoever asks for any port, so nobody has it before the server does, and who waits
    for the server does not connect to himself.
    """
    ports = random.SystemRandom().sample(range(10_000, 20_000), 10_000)

    def free_port() -> int:
        while True:
            port = ports.pop()
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
                return port

    return free_port


@pytest.fixture(autouse=True)
def confirmed_soon(request: pytest.FixtureRequest) -> Iterator[None]:
    """Confirm slots at once: hundreds of tests wait for that, and otherwise for a second."""
    # Not through ``monkeypatch``, whose changes would then outlast the fixtures of a test.
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("server") is not None:
            patch.setattr(schedule, "_MIN_INTERVAL", 0.02)
        yield


def pytest_report_header() -> str:
    """Tell which day's cases run."""
    return f"cases of the day: {today.VARIABLE}={today.day()}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this suite."""
    parser.addoption(
        "--by-day", action="store_true", help="take every sixth of the selected tests, chosen by the day"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Set up the environment that workers and every process of a test inherit."""
    today.day()
    if not hasattr(config, "workerinput"):
        chosen = (
            config.args_source is not config.ArgsSource.TESTPATHS
            or config.option.keyword
            or config.option.markexpr
        )
        os.environ[today.WHOLE] = "" if chosen else "1"
    if "AIOREPL_TEST_DSN" not in os.environ:
        # To ask embedded servers for TLS, which they do not speak, is a third of a client's work to connect.
        os.environ["PGSSLMODE"] = "disable"
    if "TMPDIR" not in os.environ and _is_roomy(MEMORY):
        os.environ["TMPDIR"] = os.environ["SPARK_LOCAL_DIRS"] = str(MEMORY)
        tempfile.tempdir = None
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        # Each of a thousand processes would compile what it imports; nothing is written beside the sources.
        os.environ["PYTHONPYCACHEPREFIX"] = str(Path(sys.prefix, "pycache"))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what takes a PostgreSQL server, and keep what takes a server of objects in one process, which has it running."""
    fixtures = getattr(item, "fixturenames", ())
    if "servers" in fixtures:
        item.add_marker(pytest.mark.server)
    if "s3_server" in fixtures and item.get_closest_marker("xdist_group") is None:
        item.add_marker(pytest.mark.xdist_group("s3"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected, which takes a fifth of the time, and none of what is there by then.

    Thousands of tests and all that they import are no garbage: collections that look at them take most of the time of those
    tests which ask for collections.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what another day runs, and keep tests of one ``xdist_group`` together.

    xdist notes the group in an attribute that pytest 9.2 ignores.
    """
    every = config.option.by_day
    if every or os.environ[today.WHOLE]:
        by_day = [item for item in items if every or item.get_closest_marker("by_day") is not None]
        # Each group is thinned out for itself: otherwise several of the longest programs may fall on one day.
        by_day.sort(key=_group)
        left_out = {*by_day}.difference(today.of_today(by_day))
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        grouped = vars(item).get("_nodeid")
        if grouped is not None and grouped != item.nodeid:
            item._id = type(item._id).parse(grouped)


def _group(item: pytest.Item) -> str:
    """The name of the item's ``xdist_group``."""
    marker = item.get_closest_marker("xdist_group")
    return "" if marker is None else str(marker.args[0])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what was skipped, by what is missing: a reason up to where it says what to do about it. List what tests have made."""
    reasons = (report.longrepr[2] for report in terminalreporter.stats.get("skipped", ()))
    missing = Counter(re.split(r" here\b| \(|: ", reason.removeprefix("Skipped: "))[0] for reason in reasons)
    if missing:
        terminalreporter.section("skipped")
    for what, tests in missing.most_common():
        terminalreporter.line(f"{what}: {tests} test{'s' * (tests > 1)}")
    for report in terminalreporter.stats.get("passed", ()):
        for what, where in report.user_properties:
            terminalreporter.line(f"{what}: {where}")


def _is_roomy(folder: Path) -> bool:
    """Whether programs can be run in a folder and some GiB written."""
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize >= MEMORY_BYTES and not found.f_flag & os.ST_NOEXEC
