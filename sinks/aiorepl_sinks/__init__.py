"""The sinks that come with aiorepl: one module or package for each, registered by entry points like any other sink.

They import the contract of sinks, the formats and their client libraries, and nothing else of aiorepl. ``formats`` has the formats of
other programs, which read changes, columns and types as well.
"""
