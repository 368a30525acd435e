"""Tells the governor what SGLang holds where. See ``docs/design/sglang-plugin.md``.

Runs in the engine's scheduler: nothing here may block its loop, raise into it or change what it decides.
"""
