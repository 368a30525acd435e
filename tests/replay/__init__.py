"""Recorded traffic of real clients, replayed through the gateway."""
