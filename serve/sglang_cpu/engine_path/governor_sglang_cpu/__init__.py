"""SGLang plugin for CPUs, and the tiny model that is served there. Runs in the engine's process."""
