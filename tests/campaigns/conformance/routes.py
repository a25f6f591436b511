"""Routes: the ways through epctx on which a case runs; and one case on one route."""

from __future__ import annotations

import re
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_conformance.backend import FOLDER_PREFIX, Providers, Through, make_backend
from epctx_onnxruntime.checking.comparison import compute_digest, difference
from epctx_onnxruntime.checking.result import Result
from onnx.backend.base import Backend, BackendRep

from epctx_core.errors import EpctxError, InvalidGraph, PluginError

if TYPE_CHECKING:
    from epctx_conformance.cases.case import Case, Data

LONGEST_REASON = 160


@dataclass(frozen=True, kw_only=True)
class Route:
    """Some EPs, and how a model gets to them; `str` gives its name, such as "qnn.file".

    Attributes:
        eps: name of the EPs and of what else they are given.
        through: as of `EpctxBackend.prepare`.
        backend: prepares models for this route. What it returns runs on inputs by name,
            and may have `claimed` and `close` as `EpctxBackendRep` has them, and
            `errors`, the base of its typed ones.
    """

    eps: str
    through: Through
    backend: type[Backend]

    def __str__(self) -> str:
        return f"{self.eps}.{self.through}"


def make_routes(eps: str, providers: Providers = (), **options: Any) -> list[Route]:
    """Return the routes of some EPs: direct, over files, embedded; without EPs the
    direct one alone.

    Args:
        eps: a name for them.
        providers, options: as of `EpctxBackend.prepare`.
    """
    ways: tuple[Through, ...] = (
        ("direct", "file", "embed") if providers else ("direct",)
    )
    return [
        Route(eps=eps, through=way, backend=make_backend(providers, way, **options))
        for way in ways
    ]


def run_case(case: Case, route: Route) -> Result:
    """Run a case on a route, twice; nothing leaves but what ends the process."""
    result = Result(case=case.name, route=str(route), outcome="passed")
    try:
        backend: Any = route.backend
        rep = backend.prepare(case.model())
        try:
            operators = dict(getattr(rep, "operators", {}))
            result = replace(
                result, claimed=getattr(rep, "claimed", 0), operators=operators
            )
            if route.through != "direct" and not result.claimed:
                return replace(result, outcome="unclaimed")
            return _run_twice(rep, case, result)
        finally:
            getattr(rep, "close", _do_nothing)()
    except EpctxError as error:
        return _note_failure(result, "refused", error, "")
    except Exception as error:  # noqa: BLE001 - that it comes is the outcome
        place = traceback.extract_tb(error.__traceback__)[-1]
        return _note_failure(
            result, "raised", error, f" in {Path(place.filename).name}"
        )


def _do_nothing() -> None:
    """Close what needs no closing."""


def _run_twice(rep: Any, case: Case, result: Result) -> Result:
    """Run each set of inputs twice, the first outputs kept."""
    sets = case.data()
    input_digest = compute_digest(
        value for data in sets for value in data.inputs.values()
    )
    first = [_run(rep, data) for data in sets]
    bits = compute_digest(first)
    wrong = _find_difference(first, sets, case)
    second = [_run(rep, data) for data in sets]
    if not wrong:
        again = _find_difference(second, sets, case)
        wrong = again and f"second run, {again}"
    if compute_digest(first) != bits:
        wrong = "aliasing"
    elif (
        compute_digest(value for data in sets for value in data.inputs.values())
        != input_digest
    ):
        wrong = "inputs"
    return replace(
        result,
        bits=bits,
        reason=wrong,
        kind=wrong,
        outcome="wrong" if wrong else "passed",
    )


def _run(rep: Any, data: Data) -> Sequence[Any] | None:
    """Return the outputs; None for a refusal that is right."""
    try:
        outputs: Sequence[Any] = rep.run(data.inputs)
    except (PluginError, InvalidGraph):
        raise
    except getattr(rep, "errors", EpctxError):
        if data.may_refuse:
            return None
        raise
    return outputs


def _find_difference(
    outputs: Sequence[Sequence[Any] | None], sets: Sequence[Data], case: Case
) -> str:
    for results, data in zip(outputs, sets, strict=True):
        if results is None or not data.outputs:
            continue
        if len(results) != len(data.outputs):
            return "another number of outputs"
        for number, pair in enumerate(zip(results, data.outputs, strict=True)):
            if wrong := difference(*pair, case.for_output(number)):
                return f"output {number}: {wrong}"
    return ""


def _note_failure(result: Result, outcome: str, error: Exception, place: str) -> Result:
    kind = type(error).__name__
    return replace(
        result,
        outcome=outcome,
        kind=kind,
        reason=f"{kind}{place}: {_simplify(str(error))}",
    )


def _simplify(text: str) -> str:
    """Return the beginning of a message without parts that change each time."""
    folder = re.escape(tempfile.gettempdir()) + rf"/{FOLDER_PREFIX}\w+"
    text = re.sub(r"0x[0-9a-f]{6,}", "0x...", re.sub(folder, ".", text))
    return " ".join(text.split())[:LONGEST_REASON]


class OnnxRuntimeAlone(Backend):
    """onnxruntime's CPU EP without epctx: what its own outcome is."""

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> BackendRep:
        """Make a session of a serialised model; `run` takes inputs by name."""
        from onnxruntime import InferenceSession

        return _OnnxRuntimeRep(
            InferenceSession(model, providers=["CPUExecutionProvider"])
        )


class _OnnxRuntimeRep(BackendRep):
    errors = Exception  # onnxruntime's have no base of their own

    def __init__(self, session: Any) -> None:
        self._session = session

    def run(self, inputs: Mapping[str, Any], **kwargs: Any) -> tuple[Any, ...]:
        return tuple(self._session.run(None, dict(inputs)))


ONNXRUNTIME = Route(eps="onnxruntime", through="direct", backend=OnnxRuntimeAlone)
"""The route to compare with."""
