"""pgoutput, the logical replication plugin's output: bytes to messages. Pure: no sockets, no loop, no clock."""
