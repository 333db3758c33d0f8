"""pgoutput, the logical replication plugin's output: its options, and its messages. Pure: no sockets, no event loop, no clock."""

from aiorepl import compiled

__path__ = compiled.path_of(__name__, __path__)
