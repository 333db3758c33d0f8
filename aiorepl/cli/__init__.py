"""The command line: parse, call, print. An error is one line on standard error and an exit code; a file with several
errors gets one line for each.

Exit codes: 0 success, 1 data that cannot be decoded or an internal error, 2 usage or configuration, 3 connection or slot,
4 a sink failed for good, 130 interrupted.
"""

from __future__ import annotations

import logging
import os
import sys

import click

from aiorepl.cli.check import check
from aiorepl.cli.demo import demo
from aiorepl.cli.dlq import dlq
from aiorepl.cli.journal import journal
from aiorepl.cli.run import run
from aiorepl.cli.sinks import sinks
from aiorepl.cli.slots import slots
from aiorepl.cli.snapshot import snapshot
from aiorepl.cli.tail import tail
from aiorepl.cli.toml_tables import InvalidFile
from aiorepl.durable import reason
from aiorepl.errors import AioreplError

INTERRUPTED = 130


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="To begin: aiorepl demo. Then, on your own server, CREATE PUBLICATION p FOR ALL TABLES, and aiorepl tail "
    "--dsn postgresql://user@host/database --publication p --slot s --create-slot",
)
@click.version_option(package_name="aiorepl")
@click.option("-v", "--verbose", count=True, help="Log more to standard error; -vv logs everything.")
def command(verbose: int) -> None:
    """PostgreSQL logical replication: deliver changes to sinks, files and Spark."""
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    logging.basicConfig(level=logging.WARNING, format="aiorepl: %(message)s", stream=sys.stderr)
    # Only our own logger: verbose logs of client libraries may contain secrets and rows.
    logging.getLogger("aiorepl").setLevel(level)
    # aiorepl logs retries itself, with their reason.
    logging.getLogger("stamina").setLevel(logging.ERROR)


command.add_command(demo)
command.add_command(tail)
command.add_command(run)
command.add_command(check)
command.add_command(snapshot)
command.add_command(slots)
command.add_command(journal)
command.add_command(sinks)
command.add_command(dlq)


def main(arguments: list[str] | None = None) -> None:
    """The console script."""
    sys.exit(_run(arguments))


def _run(arguments: list[str] | None) -> int:
    try:
        code = command.main(arguments, prog_name="aiorepl", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context is not None else ""
        return _fail(f"{error.format_message()}{hint}", code=2)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except AioreplError as error:
        return _fail(*(error.lines if isinstance(error, InvalidFile) else [str(error)]), code=error.exit_code)
    except Exception as error:
        if os.environ.get("AIOREPL_DEBUG"):
            raise
        if isinstance(error, OSError) and error.filename is not None:
            return _fail(f"cannot use {error.filename}: {reason(error)}", code=1)
        return _fail(f"internal error: {type(error).__name__}; set AIOREPL_DEBUG=1 for the traceback", code=1)
    return code if isinstance(code, int) else 0


def _fail(*lines: str, code: int) -> int:
    for line in lines:
        click.echo(f"aiorepl: {' '.join(line.split())}", err=True)
    return code
