"""Runs two models on the same inputs, and finds where inside values of the same name begin to differ.

A context model keeps the names of the values between its partitions, so they are those of the source.
Knows sessions, prints nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_cli.agreement import Difference, Tolerance, compare, compare_all
from epctx_cli.arrays import load_inputs, make_inputs
from epctx_core import InferenceSession

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto

    from epctx_core import PluginRecord, SessionOptions


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two: a model and how it is loaded."""

    model: str
    options: SessionOptions


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Both results, compared by output.

    Attributes:
        inputs: what both were run on.
        providers: the EPs of each.
        plugins: those of their EPs that plugins provide.
    """

    differences: list[Difference]
    inputs: Mapping[str, Any]
    providers: list[list[str]]
    plugins: list[PluginRecord]


def run_both(
    a: Side, b: Side, *, tolerance: Tolerance, input_path: str | None = None, seed: int = 0
) -> Outcome:
    """Run both and compare; `b` is the reference.

    Args:
        a, b: the models.
        tolerance: what counts as equal.
        input_path: a `.npz` file, or None to make inputs for `a` from the seed.
        seed: see `make_inputs`.

    Raises:
        EpctxError: a model cannot be loaded or run; see `InferenceSession`.
    """
    inputs: Mapping[str, Any] | None = None
    results, providers, plugins = [], [], []
    for side in (a, b):
        with InferenceSession(side.model, side.options) as session:
            if inputs is None:
                wanted = session.get_inputs()
                inputs = make_inputs(wanted, seed) if input_path is None else load_inputs(input_path, wanted)
            names = [output.name for output in session.get_outputs()]
            results.append(dict(zip(names, session.run(None, inputs), strict=True)))
            providers.append(session.get_providers())
            plugins += session.get_provider_records()
    first, second = results
    differences = compare_all(first, second, tolerance)
    return Outcome(differences=differences, inputs=inputs or {}, providers=providers, plugins=plugins)


# -- values inside ---------------------------------------------------------------------------------

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
                **asdict(found),
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
        self._proto: ModelProto = onnx.load(side.model, load_external_data=False)
        graph = onnx.shape_inference.infer_shapes(self._proto, data_prop=True).graph
        self._types = {value.name: value.type for value in graph.value_info}
        self.outputs = {value.name for value in self._proto.graph.output}
        self.produced = {
            name: _described(node) for node in self._proto.graph.node for name in node.output if name
        }

    def info(self, name: str) -> ValueInfoProto | None:
        """Return a value as a graph output, or None if it is no tensor of known type."""
        import onnx

        proto = self._types.get(name)
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
