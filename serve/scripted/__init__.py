"""A program with knobs that stands in for an engine in tests, benchmarks and demonstrations."""

from serve.scripted.ask import CallKind
from serve.scripted.behaviour import Behaviour, Knobs, Overflow, ScriptedCall
from serve.scripted.connection import Hit
from serve.scripted.engine import ScriptedEngine
from serve.scripted.modes import ModeOptions
from serve.scripted.script import BadScript, Ending, expand
from serve.scripted.sources import Setup, load_setup
from serve.scripted.tokens import Counting, count_tokens

__all__ = [
    "BadScript",
    "Behaviour",
    "CallKind",
    "Counting",
    "Ending",
    "Hit",
    "Knobs",
    "ModeOptions",
    "Overflow",
    "ScriptedCall",
    "ScriptedEngine",
    "Setup",
    "count_tokens",
    "expand",
    "load_setup",
]
