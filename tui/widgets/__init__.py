"""Widgets that draw cells; none of them parses text."""
