"""Format of a third package: JSON behind four bytes."""

from __future__ import annotations

import json
import os

from epctx_native_formats import (
    NativeBinary,
    NativeGraph,
    NativeTensor,
    Quantization,
)

MAGIC = b"BOXD"
HARMED: list[bool] = []
"""In a process that read what harms it."""


def matches(head):
    return head.startswith(MAGIC)


def parse(content):
    """Return the description; called in another process. What it says can end that."""
    text = json.loads(bytes(content[len(MAGIC) :]))
    if text == "end" or HARMED:
        os._exit(7)
    if text == "harm":
        HARMED.append(True)
        text = []
    graphs = []
    for graph in text:
        values = {}
        for key in ("inputs", "outputs"):
            values[key] = tuple(
                NativeTensor(
                    name=each["name"],
                    type=each.get("type", "F32"),
                    element_type=each.get("element_type", "FLOAT"),
                    shape=tuple(each.get("shape", (2, 3))),
                    quantization=each.get("quantization")
                    and Quantization(
                        scales=tuple(each["quantization"]["scales"]),
                        zero_points=tuple(each["quantization"]["zero_points"]),
                        axis=each["quantization"].get("axis"),
                    ),
                )
                for each in graph[key]
            )
        graphs.append(NativeGraph(name=graph["name"], **values))
    return NativeBinary(
        format="boxed",
        title="boxed graphs",
        bytes=len(content),
        source="BoxExecutionProvider",
        sdk="box 1.0",
        target="boxes",
        graphs=tuple(graphs),
    )


def read(content, name, reader):
    return reader.call(parse, content, name=name, result=NativeBinary)
