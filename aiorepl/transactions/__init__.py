"""Assembles messages into transactions, in commit order, without aborted ones. Pure, except for the spool file."""

from aiorepl import compiled

__path__ = compiled.path_of(__name__, __path__)
