"""Tables of OpenVINO's devices: operators, element types, shapes.

Data only; edit it to change them.

For the CPU they follow what onnxruntime-openvino 1.24.1 answers when it is asked about
ONNX's own test models; for GPU and NPU what ONNX Runtime's OpenVINO EP and its
documentation list. RandomNormalLike is left out, whose results nobody could compare,
and so are types of 4 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnx import TensorProto

from epctx_sim_openvino import conditions

if TYPE_CHECKING:
    from epctx_sim_openvino.conditions import Condition

Types = frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Device:
    """Operators, types and shapes that one device takes.

    Attributes:
        operators: of the default domain.
        types: element types of values that flow.
        weights: element types of constants.
        scalars: the operators that take values of rank 0, where they are not constants.
        empty: the operators that take values without elements.
        open_shapes: whether a dimension may be known only in a run.
        open_ranks: whether even the rank may.
    """

    operators: frozenset[str]
    types: Types
    weights: Types
    scalars: frozenset[str]
    empty: frozenset[str] = frozenset()
    open_shapes: bool
    open_ranks: bool


def _split_names(names: str) -> frozenset[str]:
    return frozenset(names.split())


_EVERYWHERE = _split_names(
    "Abs Add AveragePool BatchNormalization Cast Clip Concat Constant ConstantOfShape "
    "Conv Cos CumSum DepthToSpace DequantizeLinear Div Dropout Elu Equal Erf Exp "
    "Expand Flatten Gather Gemm GlobalAveragePool Greater GreaterOrEqual Identity "
    "InstanceNormalization LRN LayerNormalization LeakyRelu Less LessOrEqual Log "
    "MatMul Max MaxPool Mean Min Mul Neg PRelu Pad Pow QuantizeLinear Range "
    "Reciprocal ReduceMean Relu Reshape Shape Shrink Sigmoid Sign Sin Slice Softmax "
    "Softplus SpaceToDepth Split Sqrt Squeeze Sub Sum Tanh ThresholdedRelu Tile TopK "
    "Transpose Unsqueeze Where"
)
_CPU_AND_GPU = _split_names(
    "Acos Acosh And ArgMax ArgMin Asin Asinh Atan Atanh Ceil Celu Compress "
    "ConvInteger ConvTranspose Cosh DynamicQuantizeLinear Einsum Floor GRU "
    "GatherElements GatherND Gelu GlobalLpPool GlobalMaxPool HardSigmoid HardSwish If "
    "LSTM LogSoftmax Loop LpNormalization MeanVarianceNormalization Mod "
    "NonMaxSuppression Not OneHot Or RNN ReduceL1 ReduceL2 ReduceLogSum "
    "ReduceLogSumExp ReduceMax ReduceMin ReduceProd ReduceSum ReduceSumSquare Resize "
    "ReverseSequence RoiAlign Round Scatter ScatterElements ScatterND Selu Size "
    "Softsign Tan Trilu Upsample Xor"
)
_CPU_ONLY = _split_names("BitShift EyeLike GridSample MatMulInteger NonZero Sinh")
_NPU_TOO = _split_names("EyeLike")

_SCALARS = _split_names(
    "Add And Cast Ceil Clip Constant DequantizeLinear Div DynamicQuantizeLinear Floor "
    "Gather Identity If Loop Min Mul Pow QuantizeLinear Range ReduceMax ReduceMin "
    "Reshape Sqrt Squeeze Sub Unsqueeze Where"
)

_WEIGHTS: Types = frozenset(
    {
        TensorProto.BOOL, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT32,
        TensorProto.INT64, TensorProto.INT8, TensorProto.UINT8,
    }
)  # fmt: skip
_WIDER: Types = frozenset({TensorProto.INT16, TensorProto.UINT16, TensorProto.UINT32})

DEVICES: Mapping[str, Device] = {
    "CPU": Device(
        operators=_EVERYWHERE | _CPU_AND_GPU | _CPU_ONLY,
        types=_WEIGHTS | _WIDER,
        weights=_WEIGHTS | _WIDER,
        scalars=_SCALARS | {"Equal", "Less", "ReduceProd"},
        empty=frozenset({"Shape", "Slice"}),
        open_shapes=True,
        open_ranks=True,
    ),
    "GPU": Device(
        operators=_EVERYWHERE | _CPU_AND_GPU,
        types=_WEIGHTS,
        weights=_WEIGHTS,
        scalars=_SCALARS | {"ReduceProd", "Shape"},
        empty=frozenset({"Concat", "Expand", "Shape", "Slice"}),
        open_shapes=True,
        open_ranks=False,
    ),
    "NPU": Device(
        operators=_EVERYWHERE | _NPU_TOO,
        types=_WEIGHTS | {TensorProto.INT16},
        weights=_WEIGHTS,
        scalars=_SCALARS | {"Greater", "Max"},
        open_shapes=False,
        open_ranks=False,
    ),
}

CONDITIONS: Mapping[str, Condition] = {
    "BatchNormalization": conditions.inference_only,
    "Dropout": conditions.inference_only,
    "GRU": conditions.usual_activations,
    "LSTM": conditions.usual_activations,
    "LayerNormalization": conditions.one_result,
    "Pad": conditions.outwards,
    "Resize": conditions.whole_image,
    "RNN": conditions.usual_activations,
    "Reshape": conditions.not_to_a_scalar,
    "Unsqueeze": conditions.known_axes,
}
"""Conditions of single operators on every device; each gives the reason to refuse a
node, or None.
"""

CONTRIB = frozenset({"DequantizeLinear", "QuantizeLinear"})
"""Operators that are taken from com.microsoft, too: OpenVINO 2026.4 reads them, with 16
bits before opset 21.
"""

WITH_SUBGRAPHS = frozenset({"If", "Loop"})
"""Operators that are taken with their subgraphs, whole or not at all."""
