"""The pipeline: from the source to every sink, directly or through a journal.

- ``pipeline`` is the object that programs use. It runs one of the two ways to the sinks, ``direct`` and ``journaled``, which share
  their base ``fan_out``.
- ``start`` decides what a start reads, and where its consumers and the stream continue.
- ``running_sinks`` changes the sinks while the pipeline runs.
- ``options`` checks the options that depend on each other.
- ``journal_follower`` reads the journal for a sink; ``progress`` stores what a sink has made durable.
- ``initial_snapshot``, ``snapshot_source`` and ``snapshot_monitor`` connect the pipeline with ``aiorepl.snapshot``.
- ``slot_losses`` stores the losses of the slot; ``slot_recovery`` lets the next start read the tables again.
- ``registry`` finds sinks by name; ``statistics`` is what a program can observe.
"""
