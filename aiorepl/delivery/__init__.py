"""Transactions to sinks, and the slot's confirmation back."""
