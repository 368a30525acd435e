"""Traces made of real traffic, and what a trace holds in a few lines."""
