"""On the engine's ``PYTHONPATH``."""
