"""Creating sessions: context models against onnxruntime on the source; time to the
first result; memory.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness import DATA, Bar, measure, report, resident_memory, seconds, show, show_bar

if TYPE_CHECKING:
    import epctx_core as epctx
    from epctx_core.plugin import GraphView

ROOT = Path(__file__).parent.parent
BARS = {"resnet50": 0.3, "densenet121": 0.3, "bert": 0.7}
"""Each network to the part of onnxruntime's time that creating a session may take."""

MORE_BARS = {"with_first_run_s": 0.6, "resident_bytes": 1.1}
"""Further figures of every network to the part of onnxruntime's."""

EPS = {"resnet50": ("QNN",), "densenet121": ("QNN",), "bert": ("QNN", "Unlimited")}
"""Each network to EPs: QNN with its table of operators, and the same SDK without
one.
"""


def make_registry() -> epctx.Registry:
    """Return the installed EPs and one that takes every network whole, in one
    partition.
    """
    from epctx_sim_qnn import QnnProvider

    import epctx_core as epctx
    from epctx_core.plugin import ComputeCapability, hookimpl

    class UnlimitedProvider(QnnProvider):
        """The simulated SDK without limits on operators, types and shapes."""

        name = "UnlimitedExecutionProvider"
        binary_suffix = "unlimited"

        @classmethod
        def accepts_source(cls, source: str) -> bool:
            return source == cls.name

        @hookimpl
        def get_capability(self, graph: GraphView) -> list[ComputeCapability]:
            return [] if graph.parent_node else [ComputeCapability(graph.nodes)]

    registry = epctx.Registry()
    registry.register(UnlimitedProvider)
    return registry


def context_model(name: str, ep: str) -> Path:
    """Return where a network's context model for an EP lies."""
    return DATA / f"{name}_{ep.lower()}_ctx.onnx"


def make_models() -> None:
    """Write the networks and their context models, once."""
    import epctx_core as epctx

    DATA.mkdir(exist_ok=True)
    registry = make_registry()
    for name in BARS:
        path = DATA / f"{name}.onnx"
        if not path.exists():
            source = ROOT / "tests/data/models" / name / "model.onnx"
            if source.exists():
                shutil.copyfile(source, path)
            else:
                script = ROOT / "tests/support/networks" / "fill.py"
                subprocess.check_call(
                    [sys.executable, script, name, path], stdout=subprocess.DEVNULL
                )
        for ep in EPS[name]:
            so = epctx.SessionOptions()
            so.add_provider(ep)
            epctx.ModelCompiler(so, path, registry=registry).compile_to_file(
                context_model(name, ep)
            )


def create(who: str, name: str) -> None:
    """Create a session and run once, both libraries imported and warm."""
    import numpy as np
    import onnxruntime
    from onnx import parser

    import epctx_core as epctx

    small = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[1] x) => (float[1] y) { y = '
        "Relu(x) }"
    )
    onnxruntime.InferenceSession(small.SerializeToString())
    registry = make_registry()
    epctx.InferenceSession(
        small.SerializeToString(), providers=["QNN"], registry=registry
    ).close()
    path = DATA / f"{name}.onnx"
    before = resident_memory()
    sessions = []
    if who == "onnxruntime":
        created = seconds(
            lambda: sessions.append(onnxruntime.InferenceSession(str(path)))
        )
    else:
        context = context_model(name, who)
        created = seconds(
            lambda: sessions.append(epctx.InferenceSession(context, registry=registry))
        )
    session = sessions[0]
    random = np.random.default_rng(0)
    feeds = {
        v.name: random.standard_normal(v.shape, np.float32)
        if "float" in v.type
        else random.integers(0, 2, v.shape)
        for v in session.get_inputs()
    }
    first = seconds(lambda: session.run(None, feeds))
    report(
        s=created,
        with_first_run_s=created + first,
        resident_bytes=resident_memory() - before,
    )


def main() -> None:
    """Measure everything and print the tables."""
    make_models()
    for name, bar in BARS.items():
        measurement = measure(
            __file__, {who: (who, name) for who in (*EPS[name], "onnxruntime")}
        )
        bars = [Bar(ours=ep, peer="onnxruntime", at_most=bar) for ep in EPS[name]]
        show(f"session creation, {name}", measurement, bars)
        for who in EPS[name]:
            for figure, at_most in MORE_BARS.items():
                more = Bar(ours=who, peer="onnxruntime", at_most=at_most)
                show_bar(measurement, more, figure)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        create(sys.argv[1], sys.argv[2])
    else:
        main()
