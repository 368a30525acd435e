"""What needs a GPU: ``docs/gpu.md`` says how to run it."""
