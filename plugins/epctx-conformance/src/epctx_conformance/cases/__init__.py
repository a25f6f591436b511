"""Cases: a model, its inputs and its expected outputs each, and those of ONNX."""
