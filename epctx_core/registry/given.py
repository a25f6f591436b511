"""Classes that come without a package: those that the host registered, and those that EPCTX_PLUGIN names.

Owns who brings each and who uses it. Its owner holds a lock around every call but
`develop`, which imports classes under another one. Knows nothing of what is installed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from epctx_core.errors import Fail, InvalidArgument, NotFound, suggestion
from epctx_core.registry import development
from epctx_core.registry.inventory import Entry
from epctx_core.registry.records import PluginRecord, PluginState, RecordKey, simulates
from epctx_core.registry.uses import Uses
from epctx_core.registry.validation import check_provider_class

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider

_log = logging.getLogger("epctx.registry")


class GivenClasses:
    """Entries by EP type; those of EPCTX_PLUGIN that cannot be used, by what the variable says.

    Args:
        changed: called after each change.
    """

    def __init__(self, *, changed: Callable[[], None]) -> None:
        """Begin without any."""
        self._changed = changed
        self.uses = Uses()
        self._host: dict[str, Entry] = {}
        self._developed: dict[str, Entry] | None = None
        # Apart from the owner's lock, like an entry's: classes are imported under it.
        self._developing = threading.RLock()

    def entries(self) -> dict[str, Entry]:
        """Return all, the host's before those under development."""
        return {**(self._developed or {}), **self._host}

    def givers(self) -> dict[str, str]:
        """Return EP type to a sentence that says who gave its class."""
        named = f"{development.VARIABLE} names a class of this EP type"
        return {name: named for name, entry in (self._developed or {}).items() if entry.cls} | dict.fromkeys(
            self._host, "the host registered a class of this EP type itself"
        )

    def develop(self, environment: Mapping[str, str], *, again: bool = False) -> None:
        """Import what EPCTX_PLUGIN names; what is done already is done `again` only if asked for.

        Who asks meanwhile waits, but for the plugin's own import, which finds the classes of before.
        """
        with self._developing:
            before = self._developed
            if before is not None and not again:
                return
            self._developed = before or {}
            try:
                outcomes = development.import_developed(environment, taken=self._host.keys())
            except BaseException:  # the user's interrupt
                self._developed = before
                raise
            self._developed = {o.record.name: Entry(o.record, o.cls) for o in outcomes}
            self._changed()
        for outcome in outcomes:
            if outcome.cls is None:
                _log.warning("%s: %s", development.VARIABLE, outcome.record.reason)

    def add(self, cls: type[ExecutionProvider], sources: Sequence[str]) -> Entry:
        """Add a class of the host's; its name is free."""
        record = PluginRecord(
            name=cls.name,
            sources=tuple(dict.fromkeys((cls.name, *sources))),
            distribution=None,
            version=None,
            vendor=cls.vendor or None,
            simulated=simulates(cls),
            state=PluginState.LOADED,
            entry_point=f"{cls.__module__}:{cls.__qualname__}",
        )
        self._host[cls.name] = Entry(record, cls)
        self._changed()
        return self._host[cls.name]

    def remove(self, name: str) -> None:
        """Take a class of the host's back.

        Raises:
            NotFound: the host registered none of that EP type.
            Fail: somebody uses it.
        """
        if name not in self._host:
            raise NotFound(
                f"no class of the EP type {name!r} was registered.{suggestion(name, self._host)}",
                ep=name,
                hint="Plugins of installed packages are kept out with EPCTX_DISABLE_PLUGINS.",
            )
        users = self.uses.of(RecordKey(name, None))
        if users:
            raise Fail(
                f"{name} cannot be unregistered while it is used by {', '.join(users)}.",
                ep=name,
                hint="First close the sessions and share groups, and wait for the compiles.",
            )
        del self._host[name]
        self._changed()

    def end(self, entry: Entry) -> None:
        """Take a temporary class back, whoever uses it, unless that was done."""
        name = entry.record.name
        if self._host.get(name) is not entry:
            return
        users = self.uses.of(entry.record.key)
        if users:
            _log.warning("%s was taken back while it is used by %s.", name, ", ".join(users))
        del self._host[name]
        self._changed()


def check_given(cls: type[ExecutionProvider], sources: Sequence[str]) -> None:
    """Check what a host registers.

    Raises:
        PluginError: the class breaks the contract.
        InvalidArgument: `sources` is not a sequence of texts.
    """
    check_provider_class(cls)
    if isinstance(sources, str) or not all(isinstance(s, str) and s for s in sources):
        raise InvalidArgument(f"{cls.name}: sources must be a sequence of non-empty texts, not {sources!r}.")
