"""The replication protocol on the wire: frames, commands, CopyBoth, and the connection that speaks them."""

from aiorepl import compiled

__path__ = compiled.path_of(__name__, __path__)
