"""Sessions, share groups and calls in a child, as the core has them from
`epctx_core.plugin.ProcessIsolation`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from epctx_core import (  # the annotations of SessionFacts are read
    ModelMetadata,  # noqa: TC001 - as above
    NodeArg,  # noqa: TC001 - as above
    OrtEpAssignedSubgraph,  # noqa: TC001 - as above
    Placement,  # noqa: TC001 - as above
    PluginRecord,  # noqa: TC001 - as above
)
from epctx_core.ext import SessionState
from epctx_core.plugin.protos import ELEMENT_TYPES
from epctx_isolation import calls
from epctx_isolation.channel import ProtocolError
from epctx_isolation.children import Child, take_child
from epctx_isolation.limits import START_SECONDS, Limits
from epctx_isolation.orders import keep_objects
from epctx_isolation.process import Call
from epctx_isolation.results import decode_fields, decode_kept, decode_values

if TYPE_CHECKING:
    import numpy as np

    from epctx_core import RunOptions, SessionOptions
    from epctx_core.ext import Request
    from epctx_isolation.orders import HostObjects

_SECONDS = "ep.isolate_timeout_seconds"


@dataclass(frozen=True, kw_only=True)
class SessionFacts:
    """Facts of a session in a child.

    Attributes:
        metadata, inputs, outputs, placement, assigned: as of `SessionState`.
        defaults: inputs that have a value in the model.
        engine: name of the engine.
        records: of the EPs, in order of priority.
        options: EP name to its options, without secret ones.
    """

    metadata: ModelMetadata
    inputs: tuple[NodeArg, ...]
    defaults: tuple[NodeArg, ...]
    outputs: tuple[NodeArg, ...]
    placement: Placement
    assigned: tuple[OrtEpAssignedSubgraph, ...] | None
    engine: str
    records: tuple[PluginRecord, ...]
    options: Mapping[str, Mapping[str, str]]


def load(request: Request) -> SessionState:
    """Return a session that a child loads and runs; see `ProcessIsolation.load`."""
    objects = _keep_objects(request)
    shared_by = "sessions" if request.config.share_contexts else ""
    child = take_child(_find_limits(request.config), request.registry, shared_by)
    order = Call(
        function=calls.load,
        arguments=(request,),
        objects=objects,
        decode=partial(_make_state, child, objects),
        cancel=request.cancel,
    )
    return cast("SessionState", child.begin(order))


def call(
    request: Request,
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    result: type[Any],
    functions: Mapping[str, Callable[..., Any] | None],
) -> Any:
    """Call a function in a child; see `ProcessIsolation.call`."""
    objects = _keep_objects(request, **functions)
    is_shared = request.config.share_contexts
    shared_by = "compiles" if is_shared else ""
    child = take_child(_find_limits(request.config), request.registry, shared_by)
    order = Call(
        function=calls.call,
        arguments=(request, function, arguments),
        objects=objects,
        decode=partial(decode_kept, result),
        cancel=request.cancel,
    )
    number, report = child.begin(order)
    if is_shared:
        group = _identify_group(request, report)
        child.models.setdefault(group, []).append(str(report.output))
        if request.config.stop_sharing:
            del child.models[group]
    child.close(number, "close", objects)
    return report


def _identify_group(request: Request, report: Any) -> tuple[object, ...]:
    """Return the identity of the share group of a model that was compiled: folder, EPs
    and their options, as for the core.
    """
    entries = request.session.config_entries
    options = [sorted(options.items()) for _, options in request.requested or ()]
    keys = sorted(request.session.provider_option_keys)
    settings = [(key, entries[key]) for key in keys]

    folder = os.path.realpath(report.folder or "")
    eps = tuple(record.name for record in report.providers)
    return folder, eps, f"{options} {settings}"


def share(config: Any, arguments: Mapping[str, Any]) -> RemoteGroup:
    """Return a share group in a child; see `ProcessIsolation.share`."""
    child = take_child(_find_limits(config), arguments["registry"])
    return RemoteGroup(child, arguments)


def _find_limits(config: Any) -> Limits:
    """Return the limits that a host's options set."""
    # A host that sets only the longer limit means that a call may take it all.
    is_limited = config.compile_seconds is None or _SECONDS in config.entries
    seconds = config.isolation_seconds if is_limited else math.inf
    return Limits(
        seconds=seconds,
        between=max(seconds, START_SECONDS),
        max_bytes=config.isolation_bytes,
        compile_seconds=config.compile_seconds,
    )


def _keep_objects(
    request: Request, **functions: Callable[..., Any] | None
) -> HostObjects:
    reader = request.config.data_reader
    return keep_objects(
        request.session,
        request.registry,
        request.requested or (),
        progress=request.progress,
        read=None if reader is None else reader.function,
        **functions,
    )


def _make_state(
    child: Child, objects: HostObjects, told: Mapping[str, Any]
) -> SessionState:
    """Return the session of a child as the core has one.

    Raises:
        ProtocolError: what the child told is malformed.
    """
    number, facts = decode_kept(SessionFacts, told)
    values = (*facts.inputs, *facts.defaults, *facts.outputs)
    types = {value.tensor_type.elem_type for value in values}
    # A value of an unknown type has None, and none has 0.
    if not types <= {None, *ELEMENT_TYPES} - {0}:
        raise ProtocolError(f"elements of the types {types}")
    if not {record.name for record in facts.records} <= facts.options.keys():
        raise ProtocolError("a session without the options of an EP")
    session = RemoteSession(child, number, facts, objects)
    return SessionState(
        metadata=facts.metadata,
        inputs=(*facts.inputs, *facts.defaults),
        outputs=facts.outputs,
        # It has all that a session asks of its EPs.
        providers=cast("Any", session),
        run=session.run,
        placement=facts.placement,
        engine=cast("Any", _Engine(name=facts.engine)),
        # The child has their values.
        defaults={value.name: cast("Any", None) for value in facts.defaults},
        assigned=facts.assigned,
    )


@dataclass(frozen=True, kw_only=True)
class _Engine:
    """Engine of a child."""

    name: str


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """EP of a session in a child."""

    record: PluginRecord
    options: Mapping[str, str]

    def public_options(self) -> Mapping[str, str]:
        """Return the options that may be shown."""
        return self.options


class RemoteSession:
    """Session in a child of its own, with what the core asks of a session's EPs.

    Attributes:
        choices: the EPs, by name.
    """

    def __init__(
        self,
        child: Child,
        number: int,
        facts: SessionFacts,
        objects: HostObjects,
    ) -> None:
        self._child = child
        self._number = number
        self._is_closed = False
        self._objects = objects
        self._inputs = [i.name for i in (*facts.inputs, *facts.defaults)]
        self._defaults = {value.name for value in facts.defaults}
        self._expected = [output.tensor_type for output in facts.outputs]
        self.choices = {
            record.name: _Choice(record=record, options=facts.options[record.name])
            for record in facts.records
        }

    def run(
        self,
        feeds: Sequence[Any],
        options: RunOptions | None = None,
        memory: Sequence[np.ndarray | None] | None = None,
    ) -> list[Any]:
        """Run the model; see `Plan.run`."""
        tag = None if options is None else options.tag
        given = {
            name: value
            for name, value in zip(self._inputs, feeds, strict=True)
            if value is not None or name not in self._defaults
        }

        def decode(told: Any) -> list[Any]:
            return decode_values(
                told, self._expected, self._child.process.memory, memory
            )

        results: list[Any] = self._child.process.do(
            Call(
                function=calls.run,
                arguments=(self._number, given, tag),
                objects=self._objects,
                decode=decode,
                is_run=True,
                options=options,
            )
        )
        return results

    def set_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Change options of the EPs; see `InferenceSession.set_ep_dynamic_options`."""
        self._call("set_ep_dynamic_options", options)

    def end_profiling(self) -> str:
        """Write the profile; see `InferenceSession.end_profiling`."""
        return str(self._call("end_profiling"))

    def close(self) -> None:
        """Close the session and end its process; further calls do nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._child.close(self._number, "close", self._objects)

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._child.process.do(
            Call(
                function=calls.call_method,
                arguments=(self._number, method, *arguments),
                objects=self._objects,
            )
        )


class RemoteGroup:
    """Share group in a child of its own; methods as those of `ShareGroup`."""

    def __init__(self, child: Child, arguments: Mapping[str, Any]) -> None:
        self._child = child
        self._is_closed = False
        self._registry = arguments["registry"]
        self._progress = arguments["progress"]
        self._objects = self._keep_objects(None)
        self._number = child.begin(
            Call(
                function=calls.begin_group,
                arguments=(arguments,),
                objects=self._objects,
            )
        )

    def _keep_objects(self, session: SessionOptions | None) -> HostObjects:
        return keep_objects(session, self._registry, progress=self._progress)

    def compile(self, model: Any, session: SessionOptions, name: str | None) -> None:
        """Compile a model into the group."""
        self._child.process.do(
            Call(
                function=calls.add_to_group,
                arguments=(self._number, model, session, name),
                objects=self._keep_objects(session),
                cancel=session.cancellation,
            )
        )

    def finish(self, result: type[Any]) -> Any:
        """Write all files; return the report, which is of that class."""
        return self._child.process.do(
            Call(
                function=calls.call_method,
                arguments=(self._number, "finish"),
                objects=self._objects,
                decode=partial(decode_fields, result),
            )
        )

    def discard(self) -> None:
        """End the group."""
        if not self._is_closed:
            self._is_closed = True
            self._child.close(self._number, "discard", self._objects)
