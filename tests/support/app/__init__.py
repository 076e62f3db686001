"""An application as a customer would have one: definitions that do what the shipped example never does."""
