"""Payload bytes: out to files, callbacks or the model, and back in, checked and mapped."""
