"""The checks, one module a group.

A module is imported when the table is asked for; its functions stand there with `@check(group, title)`.
"""

from __future__ import annotations

GROUPS = {
    "signatures": "the class, its hooks and its options",
    "claims": "what the EP takes of a graph",
    "partitions": "how what it takes becomes partitions",
    "kernels": "single nodes that the EP runs by kernels",
    "boundaries": "what flows in and out of a partition, in which order",
    "determinism": "the same work gives the same bytes",
    "contexts": "context models: written, moved, handed over, loaded",
    "nodes": "EPContext nodes, as the EP describes them and as they come back",
    "export": "compiling without a device, and the life of an instance",
    "sharing": "share groups",
    "payloads": "payloads that are damaged or not the EP's",
    "values": "types, shapes and special numbers",
    "concurrency": "threads and sessions",
    "manners": "nothing done behind the host's back",
    "cancellation": "the host's wish to stop",
    "node_models": "agreement on the models of single operators that onnx brings",
}
"""The groups in the order of the report, and what each is about."""
