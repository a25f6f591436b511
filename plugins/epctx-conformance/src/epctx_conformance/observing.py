"""Subclass of an EP that records every call of its hooks, or acts around it.

The EP runs as it would without. Records have the arguments and results themselves, not
copies.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from epctx_core.ext import HOOKS, implemented_hooks
from epctx_core.plugin import ComputeCapability, Refusal

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider, ProviderContext

Act: TypeAlias = "Callable[..., Any]"
"""`act(honest, **arguments)`: function that is called instead of a hook;
`honest(**arguments)` is the EP's own.
"""


@dataclass(eq=False, kw_only=True)
class Call:
    """Call of a hook.

    Attributes:
        hook: its name.
        instance: the EP's instance.
        arguments: by name, all that the core passed.
        result: what the EP returned; None if it raised.
        error: what it raised, or None.
    """

    hook: str
    instance: ExecutionProvider
    arguments: Mapping[str, Any]
    result: Any = None
    error: BaseException | None = None


@dataclass(eq=False)
class Watch:
    """Records of one EP, in order; calls may come from many threads.

    Attributes:
        calls: every call of a hook; `__init__` is not among them.
        instances: every instance that was made.
        contexts: the context of each of them.
    """

    calls: list[Call] = field(default_factory=list)
    instances: list[ExecutionProvider] = field(default_factory=list)
    contexts: list[ProviderContext] = field(default_factory=list)

    def of(self, hook: str) -> list[Call]:
        """Return the calls of one hook."""
        return [call for call in self.calls if call.hook == hook]


def observe_calls(
    provider: type[ExecutionProvider], acts: Mapping[str, Act]
) -> tuple[type[ExecutionProvider], Watch]:
    """Return a subclass of the EP's class that records, and its records.

    Args:
        provider: the EP's class; valid.
        acts: hook to the function that is called instead. Hooks that the EP does not
            implement stay so.
    """
    watch = Watch()

    def begin(self: Any, context: ProviderContext) -> None:
        watch.instances.append(self)
        watch.contexts.append(context)
        provider.__init__(self, context)

    attributes: dict[str, Any] = {"__init__": begin, "__module__": provider.__module__}
    for hook, method in implemented_hooks(provider).items():
        attributes[method.attribute] = _wrap(hook, method, watch, acts.get(hook))
    subclass = type(provider.__name__, (provider,), attributes)
    return subclass, watch


def _wrap(hook: str, method: Any, watch: Watch, act: Act | None) -> Callable[..., Any]:
    """Return an implementation with the hook's whole signature around the EP's own."""
    names = HOOKS[hook].arguments
    taken = [
        name for name in inspect.signature(method.function).parameters if name in names
    ]

    def implementation(self: ExecutionProvider, *values: Any) -> Any:
        arguments = dict(zip(names, values, strict=True))
        original = method.static.__get__(self, type(self))

        def honest(**changed: Any) -> Any:
            merged = {**arguments, **changed}
            return original(*[merged[name] for name in taken])

        call = Call(hook=hook, instance=self, arguments=arguments)
        watch.calls.append(call)
        try:
            call.result = honest() if act is None else act(honest, **arguments)
        except BaseException as error:
            call.error = error
            raise
        return call.result

    return HOOKS[hook].implementation(implementation, specname=hook)


def comparable(items: Sequence[Any]) -> list[Any]:
    """Return claims and refusals in a form that can be compared: indices of nodes
    instead of nodes.
    """
    rows: list[Any] = []
    for item in items:
        indices = sorted(getattr(node, "index", node) for node in item.nodes)
        if isinstance(item, Refusal):
            rows.append(("refusal", item.reason, indices))
        else:
            rows.append(
                ("claim", item.keep_nodes, item.keep_initializers, item.exact, indices)
            )
    return sorted(rows, key=repr)


def claims(calls: Sequence[Call]) -> list[ComputeCapability]:
    """Return everything that the EP claims in some calls."""
    return [
        item
        for call in calls
        for item in call.result
        if isinstance(item, ComputeCapability)
    ]
