"""onnxruntime as the engine of epctx: its CPU kernels, its offline optimiser, and its
types of `com.microsoft` operators.
"""
