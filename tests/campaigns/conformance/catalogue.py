"""Suites of cases and all routes: what `make conformance` runs.

A suite is one line here; so is a set of EPs.
"""

from __future__ import annotations

from functools import cache, partial
from importlib.metadata import distributions

from conformance.greedy_eps import FirstTurn, Greedy, SecondTurn
from conformance.open_dimension import open_cases
from conformance.programs import load_programs
from conformance.routes import ONNXRUNTIME, Route, make_routes, run_case
from conformance.twins import load_twins
from epctx_conformance.cases.onnx_cases import load_cases
from epctx_onnxruntime.checking.child import Catalogue
from support.folders import ROOT
from support.vendors_onnxruntime import qnn_options

# By distribution, as an installed EP of a vendor goes before the simulated one of its
# name. Like the real EP, this QNN leaves what quantises a network's inputs and outputs:
# others then have work.
_QNN = ("epctx-sim-qnn:QNN", {"offload_graph_io_quantization": "1"})
_OPENVINO, _VITISAI = "epctx-sim-openvino:OpenVINO", "epctx-sim-vitisai:VitisAI"


def _is_installed(distribution: str) -> bool:
    return next(distributions(name=distribution), None) is not None


TWINS = ROOT / ".twins"
"""Where quantised twins are kept from run to run; git ignores it."""

load_cases = cache(load_cases)
_make_routes = partial(make_routes, intra_op_num_threads=1)  # children share the cores
SUITES = {
    "onnx": load_cases,
    "open": lambda: open_cases(load_cases()),
    "programs": load_programs,
    "twins": partial(load_twins, TWINS, load_cases),
}
ROUTES = [
    ONNXRUNTIME,
    *_make_routes("cpu"),
    *_make_routes("cpu_reference", **{"session.engine": "onnx.reference"}),
    *_make_routes("qnn", [_QNN]),
    *_make_routes("openvino", [_OPENVINO]),
    *_make_routes("vitisai", [_VITISAI]),
    *_make_routes("all", [_VITISAI, _QNN, _OPENVINO]),
    *_make_routes("greedy", [Greedy]),
    *_make_routes("turns", [FirstTurn, SecondTurn]),
]
if _is_installed("onnxruntime-qnn"):
    ROUTES += _make_routes("real_qnn", [("epctx-onnxruntime:QNN", qnn_options())])
if _is_installed("epctx-openvino"):
    ROUTES += _make_routes("real_openvino", ["epctx-openvino:OpenVINO"])
LEFT_OUT = {("programs", "cpu_reference.direct")}
"""Suites and routes that do not go together: `onnx.reference` takes minutes for a
network.
"""
CATALOGUE = Catalogue(SUITES, ROUTES, run_case)
NAME = "conformance.catalogue:CATALOGUE"
"""How children find it."""

_NOT_WITH_TWINS = frozenset({"cpu_reference", "all", "greedy", "turns"})


def is_asked(suite: str, case: str, route: Route) -> bool:
    """Return whether a case runs on a route.

    Twins are there for single EPs; of context models those of 8 bits are in files,
    those of 16 bits embedded.
    """
    left_out = "file" if case.endswith(".a16w8") else "embed"
    return suite != "twins" or not (
        route.eps in _NOT_WITH_TWINS or route.through == left_out
    )
