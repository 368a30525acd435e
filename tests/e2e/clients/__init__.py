"""Real clients for tests: how they are installed once a machine, and how they are driven."""
