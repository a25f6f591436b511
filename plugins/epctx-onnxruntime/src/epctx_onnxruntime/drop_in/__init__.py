"""Module with every public name of onnxruntime: `import epctx_onnxruntime as
onnxruntime`.
"""
