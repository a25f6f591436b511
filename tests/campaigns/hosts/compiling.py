"""Program: compiles networks and puts context models in their places.

    python compiling.py EP NETWORK...

Prints as JSON how many EPContext nodes each has then; the networks are kept beside them
(`ORIGINAL`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ORIGINAL = ".original"


def main() -> None:
    """Compile those for which the EP takes nodes; leave the others as they are."""
    ep, *networks = sys.argv[1:]
    counts = {network: compile_in_place(ep, Path(network)) for network in networks}
    sys.stdout.write(json.dumps(counts))


def compile_in_place(ep: str, network: Path) -> int:
    """Replace a network by its context model; return the number of EPContext nodes."""
    import onnx

    import epctx_core as epctx

    options = epctx.SessionOptions()
    options.add_provider(ep)
    compiled = network.with_name(f"{network.name}.compiled")
    epctx.ModelCompiler(
        options, network, embed_compiled_data_into_model=True
    ).compile_to_file(compiled)
    nodes = onnx.load(compiled).graph.node
    count: int = sum(node.op_type == "EPContext" for node in nodes)
    if count:
        network.rename(original_of(network))
        compiled.rename(network)
    else:
        compiled.unlink()
    return count


def original_of(network: Path) -> Path:
    """Return where a network lies while a context model is in its place."""
    return network.with_name(network.name + ORIGINAL)


def put_back(networks: list[Path]) -> None:
    """Put networks into their places again."""
    for network in networks:
        if original_of(network).exists():
            original_of(network).replace(network)


if __name__ == "__main__":
    main()
