"""Options that several commands share: the server, the publications, and names of the status page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from aiorepl.durations import parse_duration
from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.wire.commands import split_names


class _Duration(click.ParamType):  # type: ignore[type-arg]
    """A duration: seconds, or text with a unit."""

    name = "duration"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        """Return the seconds."""
        seconds = parse_duration(value) if isinstance(value, str) else value
        if seconds is None:
            self.fail(f"{value!r} is not a number of seconds, or text like 10s, 5m or 7d", parameter, context)
        return float(seconds)


DURATION: Final = _Duration()


class _Lsn(click.ParamType):  # type: ignore[type-arg]
    """An LSN as PostgreSQL prints it, or one of ``words``."""

    name = "lsn"

    def __init__(self, *words: str) -> None:
        self._words = words

    def convert(
        self, value: str | LSN, parameter: click.Parameter | None, context: click.Context | None
    ) -> LSN | str:
        """Return the LSN, or the word."""
        if isinstance(value, LSN) or value in self._words:
            return value
        try:
            return LSN.parse(value)
        except ValueError as error:
            self.fail(", or: ".join((str(error), *self._words)), parameter, context)


LSN_TYPE: Final = _Lsn()
LSN_OR_NOW: Final = _Lsn("now")

dsn = click.option(
    "--dsn",
    envvar="AIOREPL_DSN",
    help="postgresql://user@host:5432/database; default: AIOREPL_DSN, or the PG* environment variables.",
)

# No default from the environment: the dsn of a pipeline's file takes precedence over AIOREPL_DSN.
dsn_over_file = click.option(
    "--dsn",
    help="postgresql://user@host:5432/database, which replaces the dsn of a pipeline's file; default: AIOREPL_DSN, or the PG* "
    "environment variables.",
)

target_dsn = click.option(
    "--target-dsn",
    envvar="AIOREPL_TARGET_DSN",
    required=True,
    help="The other server, in the same form; default: AIOREPL_TARGET_DSN.",
)

pipeline = click.option(
    "--pipeline",
    type=click.Path(path_type=Path),
    help="The pipeline's TOML file, instead of the options that name the server and the slot.",
)

http_host = click.option(
    "--http-host",
    multiple=True,
    metavar="NAME",
    help="A name that clients of --http use, besides IP addresses, localhost and this machine's name; may be repeated.",
)


def publication_names(
    context: click.Context, parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    """Split every ``--publication`` at its commas; names may be quoted as SQL identifiers."""
    try:
        return tuple(name for part in value for name in split_names(part))
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from None


def require_one_source(pipeline: Path | None, **named: Any) -> None:
    """Require that either a pipeline's file or these options name the source.

    :param named: the value of each option, by the option's name without dashes.
    :raises click.UsageError: neither the file nor the options name the source, or both do.
    """
    names = [f"--{name}" for name in named]
    given = [value not in (None, ()) for value in named.values()]
    if pipeline is not None and any(given):
        raise click.UsageError(
            f"{' and '.join(names)}: the pipeline's file names the source; use the file or these options, not both."
        )
    if pipeline is None and not all(given):
        raise click.UsageError(f"Name the source: --pipeline, or {' and '.join(names)}.")


def publication(*, required: bool) -> Callable[[Any], Any]:
    """Return the option ``--publication``."""
    return click.option(
        "--publication",
        required=required,
        multiple=True,
        callback=publication_names,
        help="A name, or names with commas between them; may be repeated. Quote a name that contains a comma as in SQL.",
    )
