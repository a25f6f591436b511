"""Orders of a host to its child: pickled calls of functions, whose arguments refer to
what stays with the host by name.

A child trusts its host, which could as well write into its memory; a host unpickles
nothing. What refers back: the host's functions, which the child calls by messages; its
wish to cancel; and host plugins that merely observe spans.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from epctx_core import Registry, SessionOptions
from epctx_core.errors import (
    SHORTEST_SECRET,
    EpctxError,
    InvalidArgument,
    PluginError,
    describe,
)
from epctx_core.ext import Request, check_host_plugin
from epctx_core.plugin import ExecutionProvider
from epctx_isolation.channel import Sink, Source, read_exactly

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

    from epctx_isolation.shared_memory import ChildMemory, HostMemory

CANCEL = "cancel"
FUNCTION = "function"
OBJECT = "object"
OBSERVER = "observer"
"""Kinds of references to what stays with the host, or is found by its name."""

WISH = struct.Struct("<cI")
"""Wish of a host about a call, beside its orders, and the call's number."""
STOP = b"c"
TERMINATE = b"t"

NOT_ISOLATED = {
    "ep.isolate": "",
    "ep.compile_timeout": "",
    "ep.context_trust_unverified": "1",
}
"""Options by which a child does itself what its host has it do."""
CancellationFlag = type(SessionOptions().cancellation)
_SIZES = struct.Struct("<Q?Q")
_IN_CHILD = (
    "Define its class in a module that can be imported, not in a script or a function; "
    "or say with the class attribute `factory` which function makes it. ep.isolate and "
    "ep.compile_timeout need that."
)


class HostObjects(NamedTuple):
    """Parts of a host's arguments that stay with the host.

    Attributes:
        registry: the EPs.
        functions: the host's functions by the name by which the child asks for them.
        observers: host plugins that have nothing but a method `span`.
        references: other host plugins by their identity, as `module:name`.
        values: of options of EPs, which what a child prints may hold and nobody is to
            see.
    """

    registry: Registry
    functions: Mapping[str, Callable[..., Any]]
    observers: Sequence[Any]
    references: Mapping[int, str]
    values: Collection[str]


def keep_objects(
    session: SessionOptions | None,
    registry: Registry,
    requested: Sequence[tuple[str, Mapping[str, object]]] = (),
    **functions: Callable[..., Any] | None,
) -> HostObjects:
    """Return what stays with the host.

    Args:
        session: its options; None without any.
        registry: its EPs.
        requested: EPs with their options that it named elsewhere.
        functions: its functions by their names; None for those that are not there.

    Raises:
        InvalidArgument: a host plugin wraps hooks, and cannot be found by name.
    """
    observers = []
    references = {}
    added = session.host_plugins if session else ()
    checked = (check_host_plugin(each) for each in added if not isinstance(each, str))
    for host in (*registry.host_plugins, *checked):
        if not host.hooks and host.transform is None:
            observers.append(host.plugin)
        elif reference := _find_name(host.plugin):
            references[id(host.plugin)] = reference
        else:
            raise InvalidArgument(
                f"the host plugin {type(host.plugin).__qualname__} wraps hooks that "
                "run in another process, where it cannot be found.",
                hint=(
                    "Make it an attribute of a module that can be imported, or an "
                    "entry point of the group `epctx.host_plugins`; what it gathers "
                    "stays in that process. Or leave out ep.isolate and "
                    "ep.compile_timeout."
                ),
            )
    given = {name: f for name, f in functions.items() if f is not None}
    return HostObjects(
        registry,
        given,
        observers,
        references,
        _list_values(session, requested),
    )


def _list_values(
    session: SessionOptions | None,
    requested: Sequence[tuple[str, Mapping[str, object]]],
) -> set[str]:
    """Return the values of options of EPs: the host does not import their classes,
    which say what of that is secret.
    """
    if session is None:
        return set()
    providers = (*session.providers, *requested)
    texts = [str(value) for _, options in providers for value in options.values()]
    entries = session.config_entries
    texts += [entries[key] for key in session.provider_option_keys]
    return {text for text in texts if len(text) >= SHORTEST_SECRET}


def _find_name(thing: Any) -> str:
    """Return the name by which another process can import an object, or ""."""
    if isinstance(thing, type):
        place = f"{thing.__module__}:{thing.__qualname__}"
        with suppress(ImportError, AttributeError, ValueError):
            # The host's script is not run again.
            if thing.__module__ != "__main__" and resolve_name(place) is thing:
                return place
        return ""

    # Other threads may import something meanwhile.
    modules = list(sys.modules.items())
    modules.sort(key=lambda item: item[0] != type(thing).__module__)
    for module, content in modules:
        # The host's script may have another name, too.
        if content is sys.modules.get("__main__"):
            continue
        for name, value in list(getattr(content, "__dict__", {}).items()):
            # A private one may have another value there.
            if value is thing and not name.startswith("_"):
                return f"{module}:{name}"
    return ""


class _Pickler(pickle.Pickler):
    """Pickler of an order."""

    def __init__(
        self, file: io.BytesIO, objects: HostObjects, buffers: list[pickle.PickleBuffer]
    ) -> None:
        super().__init__(file, 5, buffer_callback=buffers.append)
        self._objects = objects
        self._kept: dict[int, tuple[str, Any]] = {}
        for name, function in objects.functions.items():
            self._kept[id(function)] = FUNCTION, name
        for number, observer in enumerate(objects.observers):
            self._kept[id(observer)] = OBSERVER, number
        for key, name in objects.references.items():
            self._kept[key] = OBJECT, name

    def persistent_id(self, value: Any) -> tuple[str, Any] | None:
        """Return the reference to what stays with the host."""
        if isinstance(value, CancellationFlag):
            return CANCEL, None
        return self._kept.get(id(value))

    def reducer_override(self, value: Any) -> Any:
        """Return how the child makes an object that has no form of its own."""
        if isinstance(value, Request):
            source: Any = value.source
            if isinstance(source, bytes):
                source = pickle.PickleBuffer(source)
            return Request.from_options, (
                source,
                value.session,
                value.registry,
                value.requested,
                value.progress,
            )
        if isinstance(value, SessionOptions):
            return isolate_options(value).__reduce_ex__(5)
        if isinstance(value, memoryview):
            return memoryview, (pickle.PickleBuffer(value),)
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            # numpy copies arrays of ml_dtypes into the order.
            content = value.ravel().view(np.uint8).data
            return np.ndarray, (value.shape, value.dtype, pickle.PickleBuffer(content))
        if isinstance(value, type) and issubclass(value, ExecutionProvider):
            return self._refer_to_class(value)
        return NotImplemented

    def _refer_to_class(self, cls: type[ExecutionProvider]) -> Any:
        # A derived class would not be the one that its parent's factory makes.
        factory = vars(cls).get("factory")
        if factory is not None:
            return make_class, (*factory, cls.name)
        name = _find_name(cls)
        if not name:
            raise refuse_class(cls.name, "another process cannot import its class")
        return make_class, (name, None, cls.name)


def isolate_options(session: SessionOptions) -> SessionOptions:
    """Return the options of a child, which isolates nothing further."""
    options = session.copy()
    for key, value in NOT_ISOLATED.items():
        options.add_session_config_entry(key, value)
    return options


def make_class(
    place: str, arguments: Mapping[str, Any] | None, name: str
) -> type[ExecutionProvider]:
    """Return an EP's class, in the child.

    Args:
        place: of the class, or of a function that makes it, as `module:name`.
        arguments: of the function; None for a class.
        name: of the EP.

    Raises:
        PluginError: there is nothing there, or it makes another EP.
    """
    try:
        found: Any = resolve_name(place)
        cls: type[ExecutionProvider] = (
            found if arguments is None else found(**arguments)
        )
    except Exception as error:
        raise refuse_class(name, f"{place}: {describe(error)}") from error
    if cls.name != name:
        raise refuse_class(name, f"{place} made {cls.name!r}")
    return cls


def refuse_class(name: str, reason: str) -> PluginError:
    """Return the error for a class that a child cannot have."""
    return PluginError(
        f"{name} cannot be used in a process of its own: {reason}.",
        ep=name,
        hint=_IN_CHILD,
    )


def send_order(
    sink: Sink, order: Any, objects: HostObjects, memory: HostMemory | None = None
) -> None:
    """Send an order, or the reply to a question.

    Args:
        sink: the line.
        order: what is sent.
        objects: what of it stays with the host.
        memory: for its arrays, which are there until the next order; None to send them.

    Raises:
        OSError: the other end is closed.
        EpctxError: an argument cannot be sent.
    """
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    try:
        _Pickler(file, objects, buffers).dump(order)
    except EpctxError:
        raise
    except Exception as error:
        raise InvalidArgument(
            f"an argument cannot be sent to another process: {error}.",
            hint="Leave out ep.isolate and ep.compile_timeout, or the argument.",
        ) from error
    views = [buffer.raw() for buffer in buffers]
    lengths = [view.nbytes for view in views]
    sizes = struct.pack(f"<{len(lengths)}Q", *lengths)
    if memory is not None:
        memory.write(views)
        views = []
    with file.getbuffer() as data:
        is_shared = memory is not None
        sink.sendall(_SIZES.pack(data.nbytes, is_shared, len(buffers)) + sizes)
        sink.sendall(data)
    for view in views:
        sink.sendall(view)


def receive_order(
    source: Source, memory: ChildMemory, refer: Callable[[tuple[str, Any]], Any]
) -> Any:
    """Return the host's next order, in the child.

    Args:
        source: the line.
        memory: shared with the host.
        refer: returns what a reference to the host's side is here.
    """
    size, is_shared, count = _SIZES.unpack(read_exactly(source, _SIZES.size))
    lengths = read_exactly(source, 8 * count)
    sizes = struct.unpack(f"<{count}Q", lengths)
    data = read_exactly(source, size)
    buffers: Sequence[Buffer] = (
        memory.receive(sizes)
        if is_shared
        else [bytes(read_exactly(source, each)) for each in sizes]
    )
    unpickler = pickle.Unpickler(io.BytesIO(data), buffers=buffers)  # noqa: S301 - of the host
    unpickler.persistent_load = refer  # type: ignore[method-assign]
    return unpickler.load()
