"""`onnxruntime.quantization` under the drop-in's name."""

from epctx_onnxruntime.drop_in.aliases import stand_for

stand_for(__name__)
