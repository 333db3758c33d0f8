"""Standby status updates: when to send them, and when a silent server counts as lost."""
