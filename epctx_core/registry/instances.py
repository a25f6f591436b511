"""EP instances of one session: made in order, called one EP at a time, shut down once.

Each instance is a plugin in a `pluggy.PluginManager` of its own, so that no other EP's
implementation of a hook is ever in reach. Around each of its methods the core puts one
of its own, which attributes exceptions to the EP and checks results. Host plugins wrap
that one, and what leaves the outermost of them is checked again.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import is_dataclass
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

import pluggy

from epctx_core.errors import (
    EpctxError,
    InvalidArgument,
    NotImplementedByProvider,
    PluginError,
    describe,
)
from epctx_core.plugin.hookspecs import HOOKS, PROJECT, HookSpecs
from epctx_core.registry.guard import (
    blame,
    blame_host,
    check_result,
    close_quietly,
    implemented_hooks,
)

if TYPE_CHECKING:
    from epctx_core.plugin import CompiledPartition, ExecutionProvider, ProviderContext
    from epctx_core.registry.entries import HostPlugin
    from epctx_core.registry.records import PluginRecord

_NOTHING = object()
_OF_RESULT = 4
_OF_FIELDS = 3
"""Levels of lists and objects below a list of results, and below one of its items."""
_OF_ARGUMENTS = 2


class _Methods:
    """Functions by name that pluggy registers, and nothing else."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self.names = tuple(functions)
        vars(self).update(functions)

    def __dir__(self) -> Iterable[str]:
        # pluggy looks at each, and at what all objects have, too.
        return self.names


class ProviderHooks(pluggy.PluginManager):
    """Hooks of one EP instance: a plugin manager of its own.

    It has the specifications of the hooks that the EP implements and no others, as
    adding all takes longer than most sessions.

    Attributes:
        record: the EP's record.
        hosts: the hooks that it implements, each with the labels of the host plugins
            that wrap it.

    Args:
        record: the EP's record.
        provider: the instance.
        host_plugins: those of the session, the outermost first.
    """

    def __init__(
        self,
        record: PluginRecord,
        provider: ExecutionProvider,
        host_plugins: Sequence[HostPlugin],
    ) -> None:
        super().__init__(PROJECT)
        self.record = record
        methods = implemented_hooks(type(provider))
        self.hosts = {
            hook: [host.label for host in host_plugins if hook in host.hooks]
            for hook in methods
        }
        self._last = threading.local()

        # A class of them would be a cycle.
        specifications = {hook: vars(HookSpecs)[hook] for hook in methods}
        self.add_hookspecs(_Methods(specifications))  # type: ignore[arg-type]

        checked = {
            hook: self._check(hook, method.static.__get__(provider, type(provider)))
            for hook, method in methods.items()
        }
        self.register(_Methods(checked), record.name)

        # pluggy calls first what was registered last.
        for number, host in reversed(list(enumerate(host_plugins))):
            self.register(host.plugin, f"host plugin {number}")

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        """Return pluggy's options of an attribute, None for one that is not a hook."""
        if isinstance(plugin, _Methods):
            return {} if name in self.hosts else None
        return super().parse_hookimpl_opts(plugin, name)

    def _check(self, hook: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of the EP that is blamed for what it raises and returns."""
        record = self.record
        row = HOOKS[hook]
        last = self._last
        hosts = self.hosts[hook]

        @functools.wraps(method)
        def check(*arguments: Any) -> Any:
            if hosts and _take_state(last.arguments, _OF_ARGUMENTS) != last.state:
                raise _host_error(
                    hosts, record, hook, "changed its arguments in place."
                )
            with blame(record, hook, *arguments):
                result = method(*arguments)
            result = check_result(record, row, result)
            if hosts:
                last.given = _take_state(result)
            return result

        return check

    def call(self, hook: str, arguments: Mapping[str, Any]) -> Any:
        """Call a hook that the EP implements."""
        hosts = self.hosts[hook]
        last = self._last
        if hosts:
            last.given = _NOTHING
            last.arguments = arguments
            last.state = _take_state(arguments, _OF_ARGUMENTS)
        try:
            return getattr(self.hook, hook)(**arguments)
        except BaseException as error:
            _release_frames(error)
            # What the EP raises is typed by now.
            if hosts and not isinstance(error, EpctxError | KeyboardInterrupt):
                raise _host_error(
                    hosts, self.record, hook, f"raised {describe(error)}"
                ) from error
            raise
        finally:
            last.arguments = None

    def is_changed(self, hook: str, result: object) -> bool:
        """Return whether host plugins changed the result of this thread's last call."""
        return bool(self.hosts[hook]) and self._last.given != _take_state(result)

    def close(self) -> None:
        """Release the EP and all that was registered: a manager is a cycle."""
        vars(self.hook).clear()


def _host_error(
    names: Sequence[str], record: PluginRecord, hook: str, fault: str
) -> InvalidArgument:
    return InvalidArgument(
        f"host plugin {' or '.join(names)}, which wraps {hook} of {record.label}, "
        f"{fault}",
        hint="This is a mistake in that plugin of the host, not in the EP.",
    )


def _take_state(value: Any, levels: int = _OF_RESULT) -> Any:
    """Return what a host plugin alters that changes an argument or a result of a hook
    in place, to be compared with its later state.

    What lies deeper than the levels belongs to the core or the EP, and is compared as
    it is.
    """
    if levels == _OF_FIELDS and is_dataclass(value):
        value = vars(value)
    if levels and isinstance(value, list | tuple):
        return [_take_state(item, levels - 1) for item in value]
    if levels and isinstance(value, dict):
        return {key: _take_state(item, levels - 1) for key, item in value.items()}
    if hasattr(value, "SerializeToString"):
        return value.SerializeToString(deterministic=True)
    return getattr(value, "__array_interface__", value)


def _release_frames(error: BaseException) -> None:
    """Empty pluggy's frames in a traceback: their variables have the exception, a cycle
    that would keep what the EP was given.
    """
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").startswith("pluggy."):
            with suppress(RuntimeError):
                trace.tb_frame.clear()
        trace = trace.tb_next


class ProviderInstances:
    """EP instances of one session, in order of priority.

    `add` is called from one thread while the session is made; `call` and `shutdown` may
    be called from any.

    Args:
        host_plugins: wrap the hooks of all instances, the first outermost.
    """

    def __init__(self, host_plugins: Sequence[HostPlugin] = ()) -> None:
        self.host_plugins = host_plugins
        self._observers = [h for h in host_plugins if hasattr(h.plugin, "span")]
        self._managers: dict[str, ProviderHooks] = {}
        self._waiting: list[str] = []
        self._lock = threading.Lock()

    @property
    def is_observed(self) -> bool:
        """True if a host plugin has a method `span`."""
        return bool(self._observers)

    @property
    def names(self) -> tuple[str, ...]:
        """EP names in order of priority."""
        return tuple(self._managers)

    def record(self, name: str) -> PluginRecord:
        """Return the record of an EP."""
        return self._managers[name].record

    def implements(self, ep: str, hook: str) -> bool:
        """Return whether an EP of this session has a hook; cheap enough for every
        run.
        """
        return hook in self._managers[ep].hosts

    def add(
        self,
        record: PluginRecord,
        cls: type[ExecutionProvider],
        context: ProviderContext,
    ) -> None:
        """Make an instance and register it; on failure nothing stays registered.

        Args:
            record: the EP's record.
            cls: its class, checked by the registry.
            context: the argument of its `__init__`.

        Raises:
            PluginError: its `__init__` raised.
            EpctxError: raised by its `__init__`, such as InvalidArgument for
                contradicting options.
        """
        with blame(record, "__init__", context):
            provider = cls(context)
        with blame(record, "registration"):
            # pluggy compares the arguments of hooks with the specifications.
            hooks = ProviderHooks(record, provider, self.host_plugins)
        self._managers[record.name] = hooks
        self._waiting.append(record.name)

    def call(self, ep: str, hook: str, /, **arguments: Any) -> Any:
        """Call one EP's implementation of a hook and return its result.

        Args:
            ep: the EP name; passed on as the hook's argument `ep`.
            hook: the hook's name.
            arguments: all other arguments of the hook.

        Raises:
            NotImplementedByProvider: the EP does not implement the hook.
            EPFail: the EP raised in `compile`.
            PluginError: the EP raised in another hook, or its result breaks the
                contract.
            EpctxError: raised by the EP, or by a host plugin.
            InvalidArgument: a host plugin raised another exception, or changed the
                result against the contract.
        """
        with self.calling(ep, hook, **arguments) as result:
            return result

    @contextmanager
    def calling(self, ep: str, hook: str, /, **arguments: Any) -> Iterator[Any]:
        """Call a hook, and give its result to a block that checks it further; see
        `call`.

        Raises:
            InvalidArgument: also for a PluginError of the block, where a host plugin
                changed the result.
        """
        manager = self._managers[ep]
        record = manager.record
        if not self.implements(ep, hook):
            raise NotImplementedByProvider(
                f"{record.label} does not implement the hook {hook}.",
                ep=ep,
                hint="Use an EP that does, or ask the plugin's author for it.",
            )
        with self._observe_call(ep, hook, arguments):
            result = manager.call(hook, {"ep": ep, **arguments})
        is_changed = manager.is_changed(hook, result)
        try:
            yield check_result(record, HOOKS[hook], result) if is_changed else result
        except PluginError as error:
            if not is_changed:
                raise
            fault = f"changed a result against the contract: {error.message}"
            raise _host_error(manager.hosts[hook], record, hook, fault) from error

    def _observe_call(
        self, ep: str, hook: str, arguments: Mapping[str, Any]
    ) -> AbstractContextManager[None]:
        if not self.is_observed:
            return nullcontext()

        facts: dict[str, object] = {
            name: [each.name for each in arguments[name]]
            for name in ("partitions", "nodes")
            if name in arguments
        }
        if "graph" in arguments:
            facts["left"] = len(arguments["graph"].nodes)
        return self.span(hook, "hook", ep=ep, **facts)

    @contextmanager
    def span(
        self, name: str, /, category: str = "stage", **facts: object
    ) -> Iterator[None]:
        """Have the host plugins that have a method `span` observe a block of work:
        their context managers are entered around it. They do not see its exception,
        and one that they raise when they are left is logged.

        Args:
            name: that of the stage, the step, or what an EP does.
            category: `stage`, `hook`, `run`, `step`, or `ep`.
            facts: what is known of it, such as `ep` and `nodes`.

        Raises:
            Fail: a host plugin raised.
        """
        with ExitStack() as stack:
            for host in self._observers:
                span = f"the span of the host plugin {host.label}"
                with blame_host(
                    f"{span} raised",
                    passing=(EpctxError, KeyboardInterrupt),
                    caught=(BaseException,),
                ):
                    manager = host.plugin.span(name, category, facts)
                    manager.__enter__()
                leave = partial(manager.__exit__, None, None, None)
                stack.callback(close_quietly, leave, f"leaving {span}")
            yield

    def shutdown(self) -> None:
        """Call `shutdown` once on each EP that has it, in reverse order; further calls
        do nothing.

        An exception is logged and does not affect the other EPs; a KeyboardInterrupt is
        raised again at the end.
        """
        with self._lock:
            waiting = self._waiting
            self._waiting = []
        if waiting:  # else another thread is shutting them down
            self._shut_down(waiting)

    def _shut_down(self, eps: Sequence[str]) -> None:
        """Shut EPs down, the last first, each also after an interrupt of those before
        it.

        No frame keeps the interrupt, whose traceback would keep the session in a cycle.
        """
        if not eps:
            managers = self._managers
            self._managers = {}
            for manager in managers.values():
                manager.close()
            return

        ep = eps[-1]
        try:
            if self.implements(ep, "shutdown"):
                doing = f"shutdown of {self.record(ep).label}"
                close_quietly(partial(self.call, ep, "shutdown"), doing)
        finally:
            self._shut_down(eps[:-1])


def collect_closers(results: Iterable[CompiledPartition]) -> list[Callable[[], None]]:
    """Return the `close` functions of results; one that several share is called once,
    in the order of the last of them.
    """
    closers: dict[object, Callable[[], None]] = {}
    for close in (result.close for result in results):
        if close is not None:
            # A bound method is another object each time that it is asked for, which is
            # equal to the others.
            key = close if isinstance(close, MethodType) else id(close)
            closers.pop(key, None)
            closers[key] = close
    return list(closers.values())
