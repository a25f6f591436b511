"""Atomic publication: the files of one compile appear in a folder all or none.

Owns staging, the journal, recovery and the lock. Knows neither ONNX nor what the files mean.
"""
