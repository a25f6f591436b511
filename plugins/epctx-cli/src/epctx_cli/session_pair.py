"""Comparison of two models on the same inputs, and of the values of the same name inside them.

A context model keeps the names of the values between its partitions. Prints nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from epctx_cli.agreement import Difference, Tolerance, compare, compare_all
from epctx_cli.arrays import load_inputs, make_inputs
from epctx_core import InferenceSession

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto

    from epctx_core import PluginRecord, SessionOptions


Model: TypeAlias = "tuple[str, SessionOptions]"
"""Path and session options."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Comparison of two models.

    Attributes:
        differences: one for each output.
        inputs: of both runs.
        providers: the EPs of each model.
        plugins: records of the EPs that are plugins.
    """

    differences: list[Difference]
    inputs: Mapping[str, Any]
    providers: list[list[str]]
    plugins: list[PluginRecord]


def compare_models(
    a: Model, b: Model, *, tolerance: Tolerance, input_path: str | None = None, seed: int = 0
) -> Comparison:
    """Run two models and compare their outputs; `b` is the reference.

    Args:
        a, b: the models.
        tolerance: the largest differences of equal outputs.
        input_path: a `.npz` file, or None to make inputs for `a` from the seed.
        seed: see `make_inputs`.

    Raises:
        EpctxError: a model cannot be loaded or run; see `InferenceSession`.
    """
    inputs: Mapping[str, Any] | None = None
    results, providers, plugins = [], [], []
    for model, options in (a, b):
        with InferenceSession(model, options) as session:
            if inputs is None:
                expected = session.get_inputs()
                inputs = (
                    make_inputs(expected, seed) if input_path is None else load_inputs(input_path, expected)
                )
            names = [output.name for output in session.get_outputs()]
            results.append(dict(zip(names, session.run(None, inputs), strict=True)))
            providers.append(session.get_providers())
            plugins += session.get_provider_records()
    first, second = results
    differences = compare_all(first, second, tolerance)
    return Comparison(differences=differences, inputs=inputs or {}, providers=providers, plugins=plugins)


# -- values inside ---------------------------------------------------------------------------------

_MOST_VALUES = 256
"""Largest number of values that are compared; of more, this many at even distances."""


def first_difference(
    a: Model, b: Model, inputs: Mapping[str, Any], tolerance: Tolerance
) -> dict[str, Any] | None:
    """Return the first differing value in the order of `a`, or None.

    Raises:
        EpctxError: a model cannot be run with further outputs.
    """
    first, second = _Probe(a), _Probe(b)
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


def _is_inner(name: str, *models: _Probe) -> bool:
    return all(name not in model.outputs and model.info(name) is not None for model in models)


class _Probe:
    """A model whose inner values can be run as outputs."""

    def __init__(self, model: Model) -> None:
        import onnx

        self._path, self._options = model
        self._proto: ModelProto = onnx.load(self._path, load_external_data=False)
        graph = onnx.shape_inference.infer_shapes(self._proto, data_prop=True).graph
        self._types = {value.name: value.type for value in graph.value_info}
        self.outputs = {value.name for value in self._proto.graph.output}
        self.produced = {
            name: _node_label(node) for node in self._proto.graph.node for name in node.output if name
        }

    def info(self, name: str) -> ValueInfoProto | None:
        """Return a value as a graph output, or None if it is not a tensor of known type."""
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
        options = self._options
        # A model from bytes has no folder; these two options name that of its files.
        path = Path(self._path)
        options.add_session_config_entry("ep.context_enable", "0")
        options.add_session_config_entry("ep.context_file_path", str(path))
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(path.parent)
        )
        with InferenceSession(probe.SerializeToString(), options) as session:
            return session.run(list(names), inputs)


def _node_label(node: NodeProto) -> str:
    """Return a node's name in messages."""
    source = next((a.s.decode(errors="replace") for a in node.attribute if a.name == "source"), "")
    return f"{node.op_type} {node.name!r}" + (f" ({source})" if source else "")
