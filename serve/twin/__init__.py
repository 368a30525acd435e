"""The engine's twin: a model of SGLang that answers what a real one would do, in virtual time."""
