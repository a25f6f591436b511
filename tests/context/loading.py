"""Context models made by hand, and an EP that shows what it is given to load."""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from epctx_core import InferenceSession, Registry, SessionOptions
from epctx_core.plugin import CompiledPartition, ExecutionProvider, hookimpl

EP = "TestExecutionProvider"
MANIFEST = "epctx.manifest"
BLOCK = 1 << 20
"""Bytes of a segment of what is no weight."""


def noise(size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()


def node(name, *, cache=None, main=True, embed=False, outputs=None, **attributes):
    """Return an EPContext node; what is None is not written."""
    said = {
        "source": EP,
        "main_context": int(main),
        "embed_mode": int(embed),
        "ep_cache_context": cache,
        "partition_name": name,
        **attributes,
    }
    return helper.make_node(
        "EPContext",
        ["x"],
        [f"{name}_out"] if outputs is None else outputs,
        name,
        domain="com.microsoft",
        **{key: value for key, value in said.items() if value is not None},
    )


def segments_of(content):
    """Return the segments of bytes that are no weights: blocks and their digests."""
    blocks = [content[start : start + BLOCK] for start in range(0, len(content), BLOCK)]
    return [[len(block), hashlib.sha256(block).hexdigest()] for block in blocks]


def root_of(segments):
    """Return the digest of a payload: over a line of offset, length and digest for each
    segment.
    """
    lines, offset = [], 0
    for length, digest, *_ in segments:
        lines.append(f"{offset} {length} {digest}\n")
        offset += length
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def entry_of(content, name="a_x.bin", *, embedded=False, **more):
    """Return what a manifest says of a payload."""
    segments = segments_of(content)
    return {
        "name": name,
        "embedded": embedded,
        "bytes": len(content),
        "root": root_of(segments),
        "segments": segments,
        **more,
    }


def manifest(*payloads, **more):
    """Return the text of a manifest."""
    return json.dumps(
        {
            "version": 1,
            "core": "0",
            "source_model": "",
            "providers": {},
            "payloads": list(payloads),
            **more,
        }
    )


def context_model(*nodes, said=None, values=()):
    """Return a model of EPContext nodes that all read `x`; `said` is the text of its
    manifest.
    """
    declared = {value.name: value for value in values}

    def value(name):
        return declared.get(name) or helper.make_tensor_value_info(
            name, TensorProto.FLOAT, [2]
        )

    outputs = dict.fromkeys(name for each in nodes for name in each.output)
    graph = helper.make_graph(
        nodes, "g", [value("x")], [value(name) for name in outputs]
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    if said is not None:
        made.metadata_props.add(key=MANIFEST, value=said)
    return made


class Given:
    """Arguments of a load: nodes, a reader, and the payloads that it gives."""

    def __init__(self):
        self.nodes, self.reader = [], None

    def payload(self, place=0):
        """Return the payload of a node, by its place among those given."""
        return self.reader.payload(self.nodes[place])


def never_run(_inputs, _outputs=None):
    raise AssertionError("these tests run nothing")


@contextmanager
def loaded(model, look=lambda given: None, *, options=None, ep=EP):
    """Load a model, by its path or itself; `look` is called while the EP loads, the
    session lives in the block.
    """
    given = Given()

    class Provider(ExecutionProvider):
        name = ep

        @hookimpl
        def get_capability(self, graph):
            return []

        @hookimpl
        def compile(self, partitions):
            return []

        @hookimpl
        def load_context(self, nodes, reader):
            given.nodes, given.reader = [*given.nodes, *nodes], reader
            look(given)
            return [CompiledPartition(never_run) for _ in nodes]

    registry = Registry(entry_points=False)
    registry.register(Provider)
    source = model if isinstance(model, (Path, str)) else model.SerializeToString()
    with InferenceSession(source, options, registry=registry):
        yield given


def payload_of(model, options=None):
    """Return the bytes of the first node's payload in a context model."""
    with loaded(model, lambda given: given.payload(), options=options) as given:
        return bytes(given.payload().view)


def beside(path):
    """Return options by which a model given as bytes lies at a path."""
    options = SessionOptions()
    options.add_session_config_entry("ep.context_file_path", str(path))
    return options
