"""pgoutput, the logical replication plugin's output: bytes to messages. Pure: no sockets, no loop, no clock."""

from aiorepl import compiled

__path__ = compiled.path_of(__name__, __path__)
