"""The share groups that session options drive: begun by a first model, ended by one that says it is the last.

One table a process. Models meet in a group if they go into one folder and are compiled by the same EPs with
the same options.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from epctx_core.compiling.sharing.group import Group
from epctx_core.errors import Fail
from epctx_core.registry.forking import PerProcess
from epctx_core.sessions.providers import fingerprint

if TYPE_CHECKING:
    from epctx_core.compiling.writing.destination import Destination
    from epctx_core.sessions.providers import ProviderChoice

_log = logging.getLogger("epctx.sharing")


@dataclass(kw_only=True, eq=False)
class _Open:
    """A group in the table: which of its models are being compiled."""

    group: Group = field(default_factory=Group)
    names: set[str] = field(default_factory=set)


class OpenGroups:
    """Groups by what their models have in common, until they end."""

    def __init__(self) -> None:
        # Held for a look at the table only: nothing is read, compiled, logged or closed under it.
        self._lock = threading.Lock()
        self._groups: dict[Hashable, _Open] = {}

    @contextmanager
    def joined(self, wanted: Destination, choices: Sequence[ProviderChoice]) -> Iterator[Group]:
        """Give the group of a model while it is compiled and written.

        A group whose first model fails is forgotten. A new one begins where the old one is being ended, where it
        was never stopped and has the model already, or where all of its models are gone.

        Raises:
            Fail: the model is being compiled into its group already.
        """
        key = (os.path.realpath(wanted.folder or ""), fingerprint(choices))
        model = wanted.model or ""
        entry, replaced = self._enter(key, model)
        try:
            if replaced is not None:
                self._end_unstopped(replaced)
            yield entry.group
        finally:
            self._leave(key, entry, model)

    def warn_of_open(self) -> None:
        """Log the groups that are open still, and let go of what EPs keep for them; the process ends."""
        with self._lock:
            entries, self._groups = list(self._groups.values()), {}
        for entry in entries:
            _warn(entry.group)
            entry.group.close()

    def _enter(self, key: Hashable, model: str) -> tuple[_Open, _Open | None]:
        """Return the group that a model joins, and the one in whose place it is."""
        with self._lock:
            seen = self._groups.get(key)
        # Files are looked at without the lock.
        is_gone = seen is not None and seen.group.has_lost_all()
        with self._lock:
            entry = self._groups.get(key)
            if entry is not None and model in entry.names:
                raise Fail(
                    f"{model!r} is being compiled into its share group already.",
                    hint="Give each model of a group a name of its own, and compile it once.",
                )
            replaced = None
            if entry is None or _is_over(entry, model) or (is_gone and entry is seen and not entry.names):
                replaced, entry = entry, _Open()
                self._groups[key] = entry
            entry.names.add(model)
            return entry, replaced

    def _leave(self, key: Hashable, entry: _Open, model: str) -> None:
        group = entry.group
        with self._lock:
            entry.names.discard(model)
            if entry.names:
                return
            over = group.finished or not group.models
            if not over:
                # One whose end failed may be ended yet, unless another has its place by now.
                over = self._groups.setdefault(key, entry) is not entry
            elif self._groups.get(key) is entry:
                del self._groups[key]
        if over:
            _warn(group)
            group.close()

    def _end_unstopped(self, entry: _Open) -> None:
        """Say what is lost with a group that another took the place of; whoever uses it still closes it."""
        with self._lock:
            in_use = bool(entry.names)
        if not in_use:
            _warn(entry.group)
            entry.group.close()


def _is_over(entry: _Open, model: str) -> bool:
    group = entry.group
    return group.is_ending or group.finished or any(path.name == model for path in group.models)


def _warn(group: Group) -> None:
    pending = group.pending()
    if pending:
        _log.warning(
            "a share group was never stopped: %s cannot be loaded. Compile its last model with "
            "ep.stop_share_ep_contexts=1.",
            ", ".join(repr(str(path)) for path in pending),
        )


open_groups = PerProcess(OpenGroups)
"""Of each process."""

atexit.register(lambda: open_groups.get().warn_of_open())
