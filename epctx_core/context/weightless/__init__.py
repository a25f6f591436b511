"""Weights that payloads leave in the source model: noted when a model is compiled, found when it is loaded."""
