"""From a model to a context model: who takes which node, compile, describe, write."""
