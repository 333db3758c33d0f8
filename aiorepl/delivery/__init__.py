"""One sink: its buffer, batches, writes, retries and dead letters.

A ``feeder`` fills the ``buffer`` with slices. The ``worker`` reads it, makes batches (``batching``) and decides when to write and
to flush. The ``writer`` calls the sink, concurrently if configured (``partitioning``); changes that the sink rejects become
``dead_letters``, which ``redelivery`` writes again. ``config`` has the options of a sink, and ``statistics`` its counters.
``sync_sink`` adapts synchronous sinks, ``watchdog`` names a sink that blocks the event loop, and ``data_errors`` locates a value
that cannot be decoded.
"""
