"""How much the engine can hold, and who holds it. Pure."""
