"""The built-in sinks, one a file, registered by entry points as anyone's are.

They import the contract, the formats and their client library, nothing else of aiorepl.
"""
