"""``aiorepl decrypt``: decrypt masked values."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import click


@click.command(short_help="Decrypt values that a selection has encrypted.")
@click.option(
    "--key",
    "keys",
    required=True,
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with an encryption key. Repeat the option for former keys.",
)
@click.argument("values", nargs=-1)
def decrypt(keys: tuple[Path, ...], values: tuple[str, ...]) -> None:
    """Decrypt VALUES, or the lines of standard input. Prints one value per line; line breaks in a value are printed as they are.

    The masking method "encrypt" of a selection has encrypted the values. Each value contains the id of its key, so the keys may be
    given in any order.
    """
    from aiorepl.errors import ConfigurationError
    from aiorepl.transforms.encryption import decryptor

    texts = []
    for path in keys:
        try:
            texts.append(path.read_text(encoding="utf-8-sig").rstrip("\r\n"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"--key: {path} cannot be read: {type(error).__name__}") from None
    decrypted = decryptor(texts)
    lines: Iterable[str] = values or (line.rstrip("\r\n") for line in sys.stdin)
    for line in lines:
        click.echo(decrypted(line))
