"""EP that the processes of batches find installed; environment variables say what its
compiles do.

`COUNTED` names a file that gets a line for each. `ENDING` is `always` for a compile
that ends its process, `forging` for one that leaves the result of another task before,
`hang` for one that has no end, `slow`, or the path of a file without which the process
ends once.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from epctx_core.plugin import (
    CompiledPartition,
    EPContextNode,
    ExecutionProvider,
    ProviderOption,
    hookimpl,
    supported_partitions,
)


class Provider(ExecutionProvider):
    name = "MadeExecutionProvider"
    options = (
        ProviderOption("level", int, default=0, doc="Number of the target."),
        ProviderOption("token", str, default="", doc="A licence.", secret=True),
    )

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: True)

    @hookimpl
    def compile(self, partitions):
        print("compiling", flush=True)  # noqa: T201 - for the log
        os.write(1, b"from native code\n")
        count(partitions[0].name)
        end(os.environ.get("ENDING", ""))
        self.partitions = partitions
        return [CompiledPartition(None) for _ in partitions]

    @hookimpl
    def get_ep_context_nodes(self, writer):
        nodes = []
        for partition in self.partitions:
            payload = writer.payload(partition.name)
            payload.write(b"made")
            for weight in partition.weights.values():
                payload.write_tensor(weight)
            nodes.append(EPContextNode(partition, payload))
        return nodes

    @hookimpl
    def load_context(self, nodes, reader):
        return [CompiledPartition(None) for _ in nodes]


def count(line):
    path = os.environ.get("COUNTED")
    if path:
        # One write of a short line is whole, whatever else writes.
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{line}\n".encode())
        os.close(file)
        time.sleep(0.05)


def end(how):
    while how == "hang":
        Path("hanging").touch()
        time.sleep(0.1)
    if how == "slow":
        time.sleep(0.7)
    elif how == "always":
        os._exit(9)
    elif how == "forging":
        forge_result(Path("/proc/self/fd/1").readlink().parent)
        os._exit(9)
    elif how and not Path(how).exists():
        Path(how).touch()
        os._exit(9)


def forge_result(folder):
    """Leave the result of another task, done, in the folder of this one."""
    facts = {
        "id": "another", "model": "another.onnx", "target": "phone", "state": "done",
        "was_cached": False, "seconds": 1.0, "nodes": {}, "output": "another_ctx.onnx",
        "bytes": 1, "error": None, "versions": {}, "warnings": [],
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(facts))
