"""Snapshots: the rows that the published tables have already."""

from aiorepl import compiled

__path__ = compiled.path_of(__name__, __path__)
