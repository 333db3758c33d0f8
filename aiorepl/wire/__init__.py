"""The replication protocol on the wire: frames, commands, CopyBoth, and the connection that speaks them."""
