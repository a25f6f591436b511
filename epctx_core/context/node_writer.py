"""EPContext nodes on their way out: made one by one, or copied from a template where very many are alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import onnx
from onnx import NodeProto

from epctx_core.context.node import DOMAIN, OP_TYPE

if TYPE_CHECKING:
    from epctx_core.graph.subgraph import GraphPartition


class ContextNodeDraft:
    """An EPContext node that differs from a template in its name and in what it reads and makes.

    Args:
        template: complete but for those.
        place: of `partition_name` among the template's attributes.
        partition: gives the rest.
    """

    __slots__ = ("_graph_name", "_name", "_place", "_template", "input", "output")

    def __init__(self, template: NodeProto, place: int, partition: GraphPartition) -> None:
        self._template = template
        self._place = place
        self._name, self._graph_name = partition.name, partition.graph_name
        self.input: Sequence[str] = partition.input_names
        self.output: Sequence[str] = partition.output_names

    def write(self, node: NodeProto) -> None:
        """Fill an empty node."""
        node.CopyFrom(self._template)
        node.name = self._name
        node.attribute[self._place].s = self._graph_name.encode()
        node.input.extend(self.input)
        node.output.extend(self.output)


class ContextNodeMaker:
    """Makes the EPContext nodes of one EP; equal ones are copied from a template.

    Args:
        source: the EP type.
        embed_mode: whether payloads are stored in the nodes.
        common: what all of them say besides the EP's attributes.
    """

    def __init__(
        self, source: str, *, embed_mode: bool, common: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self._common = common
        self._source = source
        self._embed_mode = embed_mode
        self._templates: dict[tuple[int, str], tuple[NodeProto, int, Mapping[str, Any]]] = {}

    def reference(
        self, partition: GraphPartition, attributes: Mapping[str, Any], doc: str
    ) -> ContextNodeDraft:
        """Return a partition's node, which refers to another's payload."""
        # Attributes are few and an EP gives many nodes the same mapping: its identity is the key.
        key = (id(attributes), doc)
        if key not in self._templates:
            template = make_context_node(
                NodeProto(name="", doc_string=doc),
                {**attributes, **self._common},
                source=self._source,
                main_context=False,
                embed_mode=self._embed_mode,
                cache=None,
            )
            place = next(i for i, a in enumerate(template.attribute) if a.name == "partition_name")
            # Kept, so that no other mapping gets this one's identity.
            self._templates[key] = (template, place, attributes)
        template, place, _ = self._templates[key]
        return ContextNodeDraft(template, place, partition)


def make_context_node(
    frame: NodeProto,
    attributes: Mapping[str, Any],
    *,
    source: str,
    main_context: bool,
    embed_mode: bool,
    cache: bytes | None,
) -> NodeProto:
    """Return an EPContext node; attributes stand in alphabetical order, so that bytes are reproducible.

    Args:
        frame: its name, inputs, outputs and doc string; becomes the node.
        attributes: the vendor's own, and `partition_name` where the graph in the payload has another name than the node.
        cache: the payload or the file's name, None for a reference.
    """
    frame.op_type, frame.domain = OP_TYPE, DOMAIN
    values: dict[str, Any] = {
        **attributes,
        "partition_name": attributes.get("partition_name") or frame.name,
        "embed_mode": int(embed_mode),
        "main_context": int(main_context),
        "source": source,
    }
    if cache is not None:
        values["ep_cache_context"] = cache
    for key in sorted(values):
        frame.attribute.append(onnx.helper.make_attribute(key, values[key]))
    return frame
