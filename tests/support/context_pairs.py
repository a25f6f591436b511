"""Models to be damaged: one compiled by the simulated QNN EP, one made by hand for an
EP that takes anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from support.small_models import OPSET, finished, saved, tensor

import epctx_core as epctx
from epctx_core.plugin import (
    Compatibility,
    CompiledPartition,
    ExecutionProvider,
    hookimpl,
)

EP = "AlphaExecutionProvider"
KEY = "epctx.manifest"
SHAPE = (16, 64)
"""Of weights large enough to lie in the payload by themselves."""
_LAST = 4


class Alpha(ExecutionProvider):
    """Takes and says nothing, and finds every payload good."""

    name = EP

    @hookimpl
    def get_capability(self, graph):
        """Take nothing."""
        return []

    @hookimpl
    def compile(self, partitions):
        """Compile nothing."""
        return [CompiledPartition(None) for _ in partitions]

    @classmethod
    def validate_compatibility(cls, info, options):
        """Give the verdict that the text names."""
        return Compatibility[info]

    @classmethod
    def verify_payloads(cls, context, nodes, reader):
        """Find nothing wrong."""
        return []


def knowing(*classes: type[ExecutionProvider]) -> epctx.Registry:
    """Return a registry with these EPs and no others."""
    registry = epctx.Registry(entry_points=False)
    for cls in classes:
        registry.register(cls)
    return registry


@dataclass
class Harness:
    """A model in a folder, and how it is verified."""

    path: Path
    registry: epctx.Registry | None = None
    options: epctx.SessionOptions = field(default_factory=epctx.SessionOptions)
    given: bytes | None = None

    @property
    def binary(self) -> Path:
        """Its only binary."""
        (found,) = self.path.parent.glob("*.bin")
        return found

    def verify(self) -> epctx.VerifyReport:
        """Verify it."""
        more = {} if self.registry is None else {"registry": self.registry}
        return epctx.verify_model(
            self.path if self.given is None else self.given, self.options, **more
        )

    def codes(self) -> list[str]:
        """Verify it; return the codes of what is found."""
        return [finding.code for finding in self.verify().findings]

    def edit(self, change: Callable[[onnx.ModelProto], object]) -> None:
        """Change the model in its file."""
        proto = onnx.load(self.path, load_external_data=False)
        change(proto)
        self.path.write_bytes(proto.SerializeToString())

    def edit_node(self, place: int, change: Callable[[onnx.NodeProto], object]) -> None:
        """Change one EPContext node."""
        self.edit(lambda proto: change(context_nodes(proto)[place]))

    def edit_metadata(self, key: str, value: str | None) -> None:
        """Set or, with None, remove one entry of the metadata."""

        def change(proto: onnx.ModelProto) -> None:
            kept = [entry for entry in proto.metadata_props if entry.key != key]
            del proto.metadata_props[:]
            proto.metadata_props.extend(kept)
            if value is not None:
                proto.metadata_props.add(key=key, value=value)

        self.edit(change)

    def edit_manifest(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the manifest."""
        proto = onnx.load(self.path, load_external_data=False)
        content = json.loads(
            next(
                entry.value
                for entry in proto.metadata_props
                if entry.key == "epctx.manifest"
            )
        )
        change(content)
        self.edit_metadata("epctx.manifest", json.dumps(content))

    def flip(self, offset: int) -> None:
        """Flip one bit of the binary."""
        content = bytearray(self.binary.read_bytes())
        content[offset] ^= 1
        self.binary.write_bytes(content)


def context_nodes(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the EPContext nodes of the main graph."""
    return [node for node in proto.graph.node if node.op_type == "EPContext"]


def attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto:
    """Return one attribute."""
    return next(each for each in node.attribute if each.name == name)


def drop(node: onnx.NodeProto, name: str) -> None:
    """Remove one attribute."""
    kept = [each for each in node.attribute if each.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)


def context_node(
    name: str, inputs: list[str], outputs: list[str], **attributes: Any
) -> onnx.NodeProto:
    """Return an EPContext node for Alpha; an attribute of None is left out."""
    values = {
        "source": EP,
        "partition_name": name,
        "embed_mode": 0,
        "main_context": 0,
        **attributes,
    }
    known = {key: value for key, value in values.items() if value is not None}
    return helper.make_node(
        "EPContext", inputs, outputs, name, domain="com.microsoft", **known
    )


def by_hand(folder: Path) -> Harness:
    """Make a context model of two nodes; the second refers to the first one's binary.

    It has no manifest.
    """
    folder.mkdir()
    nodes = [
        context_node(
            "a", ["x"], ["v"], main_context=1, ep_cache_context=b"h_alpha.bin"
        ),
        context_node("b", ["v"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [tensor("x")], [tensor("y")], value_info=[tensor("v")]
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    (folder / "h_alpha.bin").write_bytes(bytes(range(200)))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return Harness(saved(model, folder / "h_ctx.onnx"), knowing(Alpha))


def by_qnn(folder: Path) -> Path:
    """Compile a small model into three partitions with one binary: Erf is not QNN's."""
    folder.mkdir()
    nodes, weights, value = [], [], "x"
    for number, operator in enumerate(["Add", "Erf", "Mul", "Erf", "Add"]):
        inputs, output = [value], f"v{number}" if number < _LAST else "y"
        if operator != "Erf":
            array = np.full(SHAPE, number + 1, np.float32)
            weights.append(numpy_helper.from_array(array, f"w{number}"))
            inputs.append(f"w{number}")
        nodes.append(helper.make_node(operator, inputs, [output], name=f"n{number}"))
        value = output
    model = finished(
        nodes, [tensor("x", shape=SHAPE)], [tensor("y", shape=SHAPE)], weights
    )
    source = saved(model, folder / "m.onnx")
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    epctx.ModelCompiler(options, source).compile_to_file(folder / "m_ctx.onnx")
    source.unlink()
    return folder / "m_ctx.onnx"
