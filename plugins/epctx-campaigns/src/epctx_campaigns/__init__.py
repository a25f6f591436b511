"""Campaigns over epctx: cases on many routes in child processes, checks of EPs of
onnxruntime by the kit and by cases, and ONNX's backend interface.
"""
