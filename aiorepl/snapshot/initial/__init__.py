"""Reads all tables under the snapshot that the slot's creation exported, before the stream begins.

``exported`` keeps that snapshot and the locks of the tables. ``snapshot`` reads chunks on several connections, puts them into the
plan's order (``ordering``) and delivers them.
"""
