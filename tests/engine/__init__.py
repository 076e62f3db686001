"""The engine's rooms by themselves; tests/e2e has it as a whole."""
