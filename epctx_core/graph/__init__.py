"""ONNX graphs: reading, weights, index, partitions, splicing.

Knows ONNX, knows no EP.
"""
