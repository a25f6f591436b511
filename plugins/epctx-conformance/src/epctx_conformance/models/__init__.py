"""The kit's own small models, made when they are asked for. Knows onnx; knows no EP and nothing of epctx."""
