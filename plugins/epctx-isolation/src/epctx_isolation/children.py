"""Children by those that use them: one of its own for each session or compile, or one
for all whose EPs share objects.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from itertools import chain
from typing import TYPE_CHECKING, Any

from epctx_core.errors import EpctxError
from epctx_isolation import calls
from epctx_isolation.orders import keep_objects
from epctx_isolation.process import Call, ChildProcess

if TYPE_CHECKING:
    from collections.abc import Hashable

    from epctx_core import Registry
    from epctx_isolation.limits import Limits
    from epctx_isolation.orders import HostObjects

_log = logging.getLogger("epctx.providers")
# A session that nobody has closed may be collected, and leave, while its thread takes
# another child.
_lock = threading.RLock()
# Held while one that several use is started: whoever needs it waits for that one.
_starting = threading.RLock()
_shared: dict[tuple[str, Limits], Child] = {}


class Child:
    """Child with a count of those that use it; the last one ends it.

    Attributes:
        process: the child.
        models: paths of models that wait for the end of their share group, by what
            identifies it.
        is_left: whether its last user has left it.
    """

    def __init__(self, limits: Limits, registry: Registry) -> None:
        self.process = ChildProcess(limits)
        self.models: dict[Hashable, list[str]] = {}
        self.is_left = False
        self._users = 0
        try:
            begin(self.process, registry)
        except BaseException:
            self.process.close()
            raise

    def enter(self) -> Child:
        """Count one more user."""
        self._users += 1
        return self

    def leave(self) -> None:
        """Count one user less; the last one ends the child."""
        with _lock:
            self._users -= 1
            self.is_left = self._users <= 0 and not self.models
        if self.is_left:
            self.process.close()
            atexit.unregister(self.abandon)

    def begin(self, call: Call) -> Any:
        """Do the call by which one begins to use the child, who leaves it if that
        fails.
        """
        try:
            return self.process.do(call)
        except BaseException:
            self.leave()
            raise

    def close(self, number: int, method: str, objects: HostObjects) -> None:
        """Close what the child keeps, and leave; what that raises is logged.

        A session that is left open until the interpreter ends is not closed: what that
        needs is gone by then.
        """
        if sys.is_finalizing():
            self.process.kill("its host has ended")
            return
        arguments = number, method
        call = Call(function=calls.call_method, arguments=arguments, objects=objects)
        try:
            if not self.process.is_over:
                self.process.do(call)
        except EpctxError as error:
            _log.error("%s", error.message)
            _log.debug("%s", error.message, exc_info=error)
        finally:
            self.leave()

    def abandon(self) -> None:
        """End the child with this process, and warn about models that cannot be
        loaded.
        """
        if self.process.is_over:
            return
        if self.models:
            _log.warning(
                "a share group was never stopped: %s cannot be loaded. Compile its "
                "last model with ep.stop_share_ep_contexts=1.",
                ", ".join(chain.from_iterable(self.models.values())),
            )
        # A call that another thread waits for may never end.
        self.process.kill("its host has ended")


def begin(process: ChildProcess, registry: Registry) -> None:
    """Have a child set its limits, and send records from now on."""
    level = logging.getLogger("epctx").getEffectiveLevel()
    objects = keep_objects(None, registry)
    arguments = process.limits, level
    process.do(Call(function=calls.begin, arguments=arguments, objects=objects))


def take_child(limits: Limits, registry: Registry, shared_by: str = "") -> Child:
    """Return a child for one more user, who leaves it.

    Args:
        limits: its limits.
        registry: the registry of EPs.
        shared_by: the kind of work whose EPs share objects; empty for none.

    Raises:
        Fail: no process could be started.
    """
    if not shared_by:
        return Child(limits, registry).enter()
    key = shared_by, limits
    with _starting:
        with _lock:
            child = _shared.get(key)
            if child and not child.is_left and not child.process.is_over:
                return child.enter()

        # Others leave theirs meanwhile.
        child = Child(limits, registry).enter()
        atexit.register(child.abandon)
        with _lock:
            _shared[key] = child
        return child
