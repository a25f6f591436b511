"""From a model to a context model: assign nodes to EPs, compile, describe, write."""
