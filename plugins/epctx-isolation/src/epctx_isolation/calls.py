"""Functions that a host has its child call, for sessions, share groups, and what gives
a report.

Each gets the child's `Service` first, and returns what JSON can hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from epctx_core import InferenceSession, ShareGroup
from epctx_isolation.results import encode_fields, encode_values, make_outputs

if TYPE_CHECKING:
    from epctx_core.ext import Request
    from epctx_isolation.limits import Limits
    from epctx_isolation.service import Service


def begin(service: Service, limits: Limits, level: int) -> None:
    """Set the limits of the child; see `Service.begin`."""
    service.begin(limits, level)


def call(
    service: Service,
    request: Request,
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
) -> Any:
    """Call a function; return its report field by field, and the number of the request,
    which is closed by another call: what an EP does then harms no report.
    """
    number = service.keep(request)
    try:
        return {"number": number, "facts": encode_fields(function(**arguments))}
    except BaseException:
        request.close()
        raise


def call_function(
    _service: Service, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    """Call a function; return its result field by field."""
    return encode_fields(function(*arguments))


def load(service: Service, request: Request) -> Any:
    """Load a model; return the session's number, and what a host is told of it."""
    session = InferenceSession(
        request.source,
        request.session,
        # The options may name them, too.
        None if request.session.providers else request.requested,
        registry=request.registry,
    )
    records = request.config.record_assignments
    assigned = session.get_provider_graph_assignment_info() if records else None
    facts = {
        "metadata": session.get_modelmeta(),
        "inputs": session.get_inputs(),
        "defaults": session.get_overridable_initializers(),
        "outputs": session.get_outputs(),
        "placement": session.placement(),
        "assigned": assigned,
        "engine": session.engine,
        "records": session.get_provider_records(),
        "options": session.get_provider_options(),
    }
    return {"number": service.keep(session), "facts": encode_fields(facts)}


def run(
    service: Service, number: int, feeds: Mapping[str, Any], tag: str | None
) -> Any:
    """Run a session.

    Args:
        service: has the session.
        number: the session's.
        feeds: its inputs, over shared memory.
        tag: of the run's options; None without options.
    """
    session = service.objects[number]
    options = None
    if tag is not None:
        options = service.run_options
        options.tag = tag
    expected = session.get_outputs()
    rooms = make_outputs([output.tensor_type for output in expected], service.memory)
    outputs = {
        output.name: room[1]
        for output, room in zip(expected, rooms, strict=True)
        if room is not None
    }
    results = session.run(None, feeds, options, outputs=outputs or None)
    return encode_values(results, service.memory, rooms)


def call_method(service: Service, number: int, method: str, *arguments: Any) -> Any:
    """Call a method of a session or a share group; return its result as JSON can hold
    it.
    """
    return encode_fields(getattr(service.objects[number], method)(*arguments))


def begin_group(service: Service, arguments: Mapping[str, Any]) -> int:
    """Begin a share group; return its number."""
    return service.keep(ShareGroup(**arguments))


def add_to_group(
    service: Service, number: int, model: Any, options: Any, name: str | None
) -> None:
    """Compile a model into a share group."""
    service.objects[number].compile(model, options, name=name)
