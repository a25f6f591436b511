"""Atomic publication: the files of one compile appear in a folder all or none.

Owns staging, the journal, recovery and the lock. Independent of ONNX and of the content
of the files.
"""
