"""Starts the twin as an engine of a governor."""
