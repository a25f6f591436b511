"""Where inside two models values of the same name begin to differ.

A context model keeps the names of the values between its partitions, so they are those of the source.
Both models are run again with these values as further outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_cli.agreement import Tolerance, compare
from epctx_core.options import SessionOptions
from epctx_core.session import InferenceSession
from epctx_core.sessions.source import open_model

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto

    from epctx_cli.session_pair import Side

_MOST_VALUES = 256
"""How many values are compared at once; of more, as many at even distances."""


def first_difference(
    a: Side, b: Side, inputs: Mapping[str, Any], tolerance: Tolerance
) -> dict[str, Any] | None:
    """Return the first differing value in the order of `a`, or None.

    Raises:
        EpctxError: a model cannot be run with further outputs.
    """
    first, second = _Opened(a), _Opened(b)
    names = _spread([n for n in first.produced if n in second.produced and _is_inner(n, first, second)])
    if not names:
        return None
    results = first.values(names, inputs), second.values(names, inputs)
    for name, x, y in zip(names, *results, strict=True):
        found = compare(name, x, y, tolerance)
        if not found.equal:
            return {
                **found.as_dict(),
                "compared": len(names),
                "from_a": first.produced[name],
                "from_b": second.produced[name],
            }
    return None


def _spread(names: Sequence[str]) -> list[str]:
    step = -(-len(names) // _MOST_VALUES) or 1
    return list(names[::step])


def _is_inner(name: str, *models: _Opened) -> bool:
    return all(name not in model.outputs and model.info(name) is not None for model in models)


class _Opened:
    """One model with what its nodes produce."""

    def __init__(self, side: Side) -> None:
        import onnx

        self._side = side
        self._types = open_model(side.model, SessionOptions().config()).types
        # As stored, not as opened: large weights were taken out of that one.
        self._proto: ModelProto = onnx.load(side.model, load_external_data=False)
        self.outputs = {value.name for value in self._proto.graph.output}
        self.produced = {
            name: _described(node) for node in self._proto.graph.node for name in node.output if name
        }

    def info(self, name: str) -> ValueInfoProto | None:
        """Return a value as a graph output, or None if it is no tensor of known type."""
        import onnx

        proto = self._types.proto(name)
        if proto is None or not proto.HasField("tensor_type"):
            return None
        return onnx.ValueInfoProto(name=name, type=proto)

    def values(self, names: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
        """Run the model and return these values."""
        probe = type(self._proto)()
        probe.CopyFrom(self._proto)
        probe.graph.output.extend(info for name in names if (info := self.info(name)) is not None)
        options = self._side.options
        # A model from bytes has no folder; these two say where its files are.
        path = Path(self._side.model)
        options.add_session_config_entry("ep.context_enable", "0")
        options.add_session_config_entry("ep.context_file_path", str(path))
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(path.parent)
        )
        with InferenceSession(probe.SerializeToString(), options) as session:
            return session.run(list(names), inputs)


def _described(node: NodeProto) -> str:
    """Return how messages call the node."""
    source = next((a.s.decode(errors="replace") for a in node.attribute if a.name == "source"), "")
    return f"{node.op_type} {node.name!r}" + (f" ({source})" if source else "")
