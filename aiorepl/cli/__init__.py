"""The command line: parse, call, print. Whatever goes wrong is one line on standard error and an exit code;
the mistakes in a file are a line each.

Exit codes: 0 done, 1 data that cannot be decoded or a fault of ours, 2 usage or configuration, 3 cannot connect or a
slot problem, 4 a sink failed for good, 130 interrupted.
"""

from __future__ import annotations

import logging
import os
import sys

import click

from aiorepl.cli.check import check
from aiorepl.cli.config import Mistakes
from aiorepl.cli.demo import demo
from aiorepl.cli.dlq import dlq
from aiorepl.cli.journal import journal
from aiorepl.cli.run import run
from aiorepl.cli.sinks import sinks
from aiorepl.cli.slots import slots
from aiorepl.cli.tail import tail
from aiorepl.durable import reason
from aiorepl.errors import AioreplError

INTERRUPTED = 130


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Begin with: aiorepl demo. Then, on your own server: CREATE PUBLICATION p FOR ALL TABLES; and aiorepl tail "
    "--dsn postgresql://user@host/database --publication p --slot s --create-slot",
)
@click.version_option(package_name="aiorepl")
@click.option("-v", "--verbose", count=True, help="Tell more on standard error; twice for still more.")
def command(verbose: int) -> None:
    """PostgreSQL logical replication for Python: changes to sinks, files and Spark."""
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    logging.basicConfig(level=logging.WARNING, format="aiorepl: %(message)s", stream=sys.stderr)
    # Clients' own logs, told to tell more, quote URLs, headers and what is sent, which may be secrets and rows.
    logging.getLogger("aiorepl").setLevel(level)
    # We tell of retries ourselves, and why.
    logging.getLogger("stamina").setLevel(logging.ERROR)


command.add_command(demo)
command.add_command(tail)
command.add_command(run)
command.add_command(check)
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
        # The mistakes in a file are told together, a line each.
        return _fail(*(error.lines if isinstance(error, Mistakes) else [str(error)]), code=error.exit_code)
    except Exception as error:
        if os.environ.get("AIOREPL_DEBUG"):
            raise
        if isinstance(error, OSError) and error.filename is not None:
            return _fail(f"cannot use {error.filename}: {reason(error)}", code=1)
        return _fail(f"a fault of aiorepl: {type(error).__name__}: AIOREPL_DEBUG=1 shows where", code=1)
    return code if isinstance(code, int) else 0


def _fail(*lines: str, code: int) -> int:
    for line in lines:
        click.echo(f"aiorepl: {' '.join(line.split())}", err=True)
    return code
