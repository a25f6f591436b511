"""Kits for plugins that are no EPs: engines, graph transformers and commands."""
