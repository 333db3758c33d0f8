"""Mirrors changes into the tables of a lake."""
