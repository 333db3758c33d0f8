"""Formats of other programs, registered by entry points like any other format."""
