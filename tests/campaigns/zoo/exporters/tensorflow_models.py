# /// script
# dependencies = ["tf2onnx==1.17.0", "tensorflow-cpu==2.21.0", "onnx==1.23.2", "onnxruntime==1.32.0"]
# [tool.zoo]
# apart = true
# models = ["tensorflow_*"]
# ///
"""Make small networks of TensorFlow, exported by tf2onnx, which wraps what is NHWC in
transposes.
"""

from __future__ import annotations

import tensorflow as tf
import tf2onnx
from saving import ROWS, drawn, save

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.keras.utils.set_random_seed(0)


def exported(name: str, network: tf.keras.Model, opset: int, *shape: int) -> None:
    """Save a network whose first dimension is open."""
    given = [tf.TensorSpec([None, *shape], tf.float32, "x")]
    traced = tf.function(network, input_signature=given)
    model, _ = tf2onnx.convert.from_function(traced, given, opset=opset)
    save(f"tensorflow_{name}_opset{opset}", model, {"x": drawn(ROWS, *shape)})


layers = tf.keras.layers
images = tf.keras.Sequential(
    [
        layers.Input((8, 10, 3)),
        layers.Conv2D(6, 3, padding="same", activation="relu"),
        layers.DepthwiseConv2D(3, strides=2, padding="same"),
        layers.BatchNormalization(),
        layers.ReLU(6.0),
        layers.UpSampling2D(2),
        layers.GlobalAveragePooling2D(),
        layers.Dense(4, activation="softmax"),
    ]
)
sequences = tf.keras.Sequential(
    [
        layers.Input((7, 4)),
        layers.LSTM(5, return_sequences=True),
        layers.GRU(4),
        layers.Dense(3),
    ]
)
for opset in (9, 15):
    exported("images", images, opset, 8, 10, 3)
exported("sequences", sequences, 13, 7, 4)
