"""Queries of the source's catalog beside the stream: tables and their ancestors, and composite types."""
