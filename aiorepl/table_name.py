"""``TableName``: a table by schema and name."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from aiorepl.errors import ConfigurationError
from aiorepl.pgoutput.relations import Relation

_NAME: Final = re.compile(r'(?:("(?:[^"]|"")+"|[^".]+)\.)?("(?:[^"]|"")+"|[^".]+)')


class TableName(NamedTuple):
    """A table by schema and name. Logical decoding messages have no table; the schema of their name is ``""``."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Parse ``orders``, ``public.orders`` or ``"Odd.Schema"."Orders"``. Names are case-sensitive, also without quotes.

        :raises ConfigurationError: the text has another form.
        """
        match = _NAME.fullmatch(text)
        if match is None:
            raise ConfigurationError(
                f'table {text!r} is not a name: write schema.table, with "quotes" around a part that contains a dot'
            )
        return cls(_unquoted(match[1] or "public"), _unquoted(match[2]))

    @property
    def messages(self) -> bool:
        """Whether this is the name of logical decoding messages."""
        return not self.schema

    def is_of(self, relation: Relation) -> bool:
        """Whether ``relation`` describes this table."""
        return relation.name == self.name and relation.schema == self.schema

    def __str__(self) -> str:
        return self.name if self.messages else f"{self.schema}.{self.name}"


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
