"""The ways through epctx on which each case runs: EPs times how their work gets to the session that runs."""

from __future__ import annotations

import re
import traceback
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import onnxruntime
from backend.cases import Data, compute_digest, data_of, difference, model_bytes
from backend.greedy_eps import FirstTurn, Greedy, SecondTurn
from end_to_end.sim_eps import CPU, OPENVINO, QNN, VITISAI, with_eps

import epctx_core as epctx

if TYPE_CHECKING:
    from onnx.backend.test.case.test_case import TestCase

EPS: dict[str, tuple[str | type, ...]] = {
    "onnxruntime": (),
    "cpu": (),
    "qnn": (QNN,),
    "openvino": (OPENVINO,),
    "vitisai": (VITISAI,),
    "all": (VITISAI, QNN, OPENVINO),
    "greedy": (Greedy,),
    "turns": (FirstTurn, SecondTurn),
}
"""EPs in order of priority: names of installed ones, classes of the tests' own. The first is onnxruntime without epctx."""

LONGEST_REASON = 160


class Route(NamedTuple):
    """Some EPs, and how: in the session itself, or over a context model in files or in bytes."""

    eps: str
    through: str

    def __str__(self) -> str:
        return f"{self.eps}.{self.through}"


ROUTES = [
    Route(eps, how) for eps in EPS for how in ("direct", "file", "embedded") if EPS[eps] or how == "direct"
]


@dataclass(kw_only=True)
class Result:
    """Outcome of one case on one route.

    Attributes:
        outcome: passed; wrong: other results than the case expects; refused: an error of ours; raised: one that is
            not; crashed, hung: what the process did; differs: passed, but in other bits than the direct route.
        reason: for a person.
        kind: the part of the reason that another text does not change: an error's class, what is wrong.
        claimed: how many nodes EPs took.
        bits: digest of the outputs.
    """

    case: str
    route: str
    outcome: str
    reason: str = ""
    kind: str = ""
    claimed: int = 0
    bits: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return what is not empty."""
        return {key: value for key, value in asdict(self).items() if value}


def run(case: TestCase, route: Route, folder: Path) -> Result:
    """Run a case on a route; nothing leaves but what ends the process.

    Args:
        case: the case.
        route: the way.
        folder: an empty one.
    """
    result = Result(case=case.name, route=str(route), outcome="passed")
    try:
        with _session(case, route, folder, result) as session:
            outputs = [(session.run(None, data.inputs), data) for data in data_of(case)]
        result.bits = compute_digest([found for found, _ in outputs])
        result.reason = result.kind = next(filter(None, (_wrong(*each, case) for each in outputs)), "")
        result.outcome = "wrong" if result.reason else "passed"
    except epctx.EpctxError as error:
        result.outcome, result.kind = "refused", type(error).__name__
        result.reason = f"{result.kind}: {_plain(str(error), folder)}"
    except Exception as error:  # noqa: BLE001 - that it comes is what is found out
        place = traceback.extract_tb(error.__traceback__)[-1]
        result.outcome, result.kind = "raised", type(error).__name__
        result.reason = f"{result.kind} in {Path(place.filename).name}: {_plain(str(error), folder)}"
    return result


def _session(case: TestCase, route: Route, folder: Path, result: Result) -> AbstractContextManager[Any]:
    """Return the session that runs, and note how many nodes EPs took."""
    eps = EPS[route.eps]
    registry = epctx.Registry(entry_points=not any(isinstance(ep, type) for ep in eps))
    for ep in eps:
        if isinstance(ep, type):
            registry.register(ep)
    options = with_eps(*(ep if isinstance(ep, str) else ep.name for ep in eps))
    source = folder / "m.onnx"
    source.write_bytes(model_bytes(case))
    if route.eps == "onnxruntime":
        return nullcontext(onnxruntime.InferenceSession(source, providers=[CPU]))
    if route.through == "direct":
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        providers = None if eps else [CPU]
        session = epctx.InferenceSession(source, options, providers, registry=registry)
        info = session.get_provider_graph_assignment_info()
        result.claimed = sum(len(part.get_nodes()) for part in info if part.ep_name != CPU)
        return session
    compiler = epctx.ModelCompiler(options, source, route.through == "embedded", registry=registry)
    if route.through == "file":
        written: Path | bytes = folder / "m_ctx.onnx"
        report = compiler.compile_to_file(written)
    else:
        written = compiler.compile_to_bytes()
        report = compiler.report
    result.claimed = sum(partition.nodes for partition in report.partitions)
    source.unlink()
    return epctx.InferenceSession(written, registry=registry)


def _wrong(found: list[Any], data: Data, case: TestCase) -> str:
    if len(found) != len(data.outputs):
        return "another number of outputs"
    for number, pair in enumerate(zip(found, data.outputs, strict=True)):
        if wrong := difference(*pair, case):
            return f"output {number}: {wrong}"
    return ""


def _plain(text: str, folder: Path) -> str:
    """Return the beginning of a message without what is another one each time."""
    text = re.sub(r"0x[0-9a-f]{6,}", "0x...", text.replace(str(folder), "."))
    return " ".join(text.split())[:LONGEST_REASON]
