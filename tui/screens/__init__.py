"""Screens besides the overview."""
