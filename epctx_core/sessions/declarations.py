"""Declarations of a model that its values refute in a run: told of once, and named where an EP fails over one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from epctx_core.errors import RuntimeException
from epctx_core.registry.guard import describe
from epctx_core.sessions.ep_calls import has_shape

if TYPE_CHECKING:
    from epctx_core.plugin import ValueInfo
    from epctx_core.registry.records import PluginRecord
    from epctx_core.sessions.ep_calls import Boundary
    from epctx_core.sessions.plan import RunStep

_log = logging.getLogger("epctx.session")


def tell_of_outputs(run: RunStep, boundary: Boundary) -> RunStep:
    """Return a step's `run` that says once of each value that it has another shape than the model declares."""
    if not boundary.hints:
        return run
    left = dict(boundary.hints)

    def run_and_tell(inputs: Sequence[Any], buffers: Sequence[np.ndarray] | None) -> Sequence[Any]:
        answer = run(inputs, buffers)
        for place, value in list(left.items()):
            result = answer[place]
            other = isinstance(result, np.ndarray) and not has_shape(result, value.type)
            if other and left.pop(place, None) is not None:
                _log.warning("%s.", _falsely_declared(value, result))
        return answer

    return run_and_tell


def _falsely_declared(value: ValueInfo, found: np.ndarray) -> str:
    return (
        f"the model declares {value.type} for the value {value.name!r}, and its operators give "
        f"{found.dtype}{list(found.shape)}"
    )


def tell_with_inputs(run: RunStep, boundary: Boundary, record: PluginRecord) -> RunStep:
    """Return an EP's `run` that tells of its outputs, and names a false declaration of an input where the EP fails."""
    if not boundary.input_hints:
        return tell_of_outputs(run, boundary)

    def run_with_hints(inputs: Sequence[Any], buffers: Sequence[np.ndarray] | None) -> Sequence[Any]:
        try:
            return run(inputs, buffers)
        except Exception as error:
            for place, value in boundary.input_hints.items():
                if isinstance(inputs[place], np.ndarray) and not has_shape(inputs[place], value.type):
                    raise RuntimeException(
                        f"{_falsely_declared(value, inputs[place])}; {record.name} was given what is declared, and "
                        f"fails: {describe(error)}",
                        ep=record.name,
                        hint=f"Remove the value_info {value.name!r} from the model and compile it again.",
                    ) from error
            raise

    return tell_of_outputs(run_with_hints, boundary)
