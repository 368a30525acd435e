"""Not a package of the governor: this folder is an entry of the engine's ``PYTHONPATH``.

Its modules import torch and sglang, which only the engine's virtual environment has, and each other by their top-level
names or relatively. The file makes the type checker see them.
"""
