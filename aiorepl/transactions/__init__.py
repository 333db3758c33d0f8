"""Messages to whole transactions, in commit order, without what aborted. Pure, its spool file aside."""

from aiorepl import compiled

__path__ = compiled.path_of(__name__, __path__)
