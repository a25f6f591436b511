"""Export of one network of PyTorch into the zoo, with open or fixed dimensions."""

from __future__ import annotations

import io
import logging
import warnings
from typing import TYPE_CHECKING

import torch
from saving import save

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx
    from torch import nn

Tensors = dict[str, torch.Tensor]
OPEN_SIZES = (2, 7), (1, 4), (3, 9)
"""Batch and sequence of the runs of a model with open dimensions; the first is what
the exporter sees.
"""


def export(
    name: str,
    network: nn.Module,
    make: Callable[[int, int], Tensors],
    dimensions: Mapping[int, str] | Mapping[str, Mapping[int, str]] | None,
    *,
    trace: int = 0,
) -> None:
    """Save a network as torch's exporter writes it, with inputs of each size.

    Args:
        name: in the zoo.
        network: takes the inputs in their order, as `*inputs`.
        make: makes inputs for a batch and a sequence.
        dimensions: names of open dimensions by position, alike for all inputs or for
            each; None for fixed shapes, and one run.
        trace: operator set for the exporter that traces; 0 for the newer one, which
            captures a graph.
    """
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    given = make(*OPEN_SIZES[0])
    is_for_each = dimensions is not None and given.keys() == dimensions.keys()
    lengths = {
        key: dict(dimensions[key] if is_for_each else dimensions or {}) for key in given
    }
    names = {dimension for each in lengths.values() for dimension in each.values()}
    written = io.BytesIO()
    if trace:
        torch.onnx.export(
            network.eval(), tuple(given.values()), written, dynamo=False,
            opset_version=trace, input_names=[*given],
            dynamic_axes={k: v for k, v in lengths.items() if v},
        )  # fmt: skip
        model: onnx.ModelProto | bytes = written.getvalue()
    else:
        dims = {name: torch.export.Dim(name) for name in names}
        program = torch.onnx.export(
            network.eval(), tuple(given.values()), dynamo=True, verbose=False,
            input_names=[*given],
            # Nested as `*inputs` is.
            dynamic_shapes=(tuple(
                {axis: dims[d] for axis, d in each.items()}
                for each in lengths.values()
            ),) if dims else None,
        )  # fmt: skip
        model = without_notes(program.model_proto)

    sizes = OPEN_SIZES if names else OPEN_SIZES[:1]
    if len(names) == 1:
        # Only the batch is open.
        sizes = tuple((batch, OPEN_SIZES[0][1]) for batch, _ in OPEN_SIZES)
    runs = [{k: v.numpy() for k, v in make(*size).items()} for size in sizes]
    save(name, model, *runs)


def without_notes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without the exporter's notes, which name folders of the machine
    and are four fifths of a small model.
    """
    graph = model.graph
    nodes = [*graph.node]
    for function in model.functions:
        nodes += function.node
        del function.metadata_props[:]
    for node in nodes:
        del node.metadata_props[:]
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                nodes += inner.node
    for each in (*graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del each.metadata_props[:]
    del graph.metadata_props[:]
    return model
