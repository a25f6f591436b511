"""Suites of cases and all routes: what `make conformance` runs. A suite is one line here; so is a set of EPs."""

from __future__ import annotations

from functools import cache

from conformance.greedy_eps import FirstTurn, Greedy, SecondTurn
from conformance.programs import load_programs
from end_to_end.sim_eps import OPENVINO, QNN, VITISAI
from epctx_conformance.cases.campaign import Catalogue
from epctx_conformance.cases.onnx_cases import load_cases
from epctx_conformance.cases.routes import ONNXRUNTIME, make_routes

# As with the real EP, this QNN leaves what quantizes a network's inputs and outputs: others then have work.
_QNN = (QNN, {"offload_graph_io_quantization": "1"})

load_cases = cache(load_cases)
SUITES = {
    "onnx": load_cases,
    "programs": load_programs,
}
ROUTES = [
    ONNXRUNTIME,
    *make_routes("cpu"),
    *make_routes("cpu_reference", **{"session.engine": "onnx.reference"}),
    *make_routes("qnn", [_QNN]),
    *make_routes("openvino", [OPENVINO]),
    *make_routes("vitisai", [VITISAI]),
    *make_routes("all", [VITISAI, _QNN, OPENVINO]),
    *make_routes("greedy", [Greedy]),
    *make_routes("turns", [FirstTurn, SecondTurn]),
]
CATALOGUE = Catalogue(SUITES, ROUTES)
NAME = "conformance.catalogue:CATALOGUE"
"""How children find it."""
