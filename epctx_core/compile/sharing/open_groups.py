"""The share groups that session options drive: begun by a first model, ended by one that says it is the last.

One table a process. Models meet in a group if they go into one folder and are compiled by the same EPs with
the same options.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from epctx_core.compile.sharing.group import Group
from epctx_core.compile.sharing.rules import fingerprint

if TYPE_CHECKING:
    from epctx_core.compile.providers import ProviderChoice
    from epctx_core.compile.writing.destination import Destination

_log = logging.getLogger("epctx.sharing")


class OpenGroups:
    """Groups by what their models have in common, until they end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[Hashable, Group] = {}
        self._users: Counter[int] = Counter()

    @contextmanager
    def joined(self, wanted: Destination, choices: Sequence[ProviderChoice]) -> Iterator[Group]:
        """Give the group of a model while it is compiled and written.

        A group whose first model fails is forgotten. A model that is in its group already begins a new one:
        the old one was never stopped.
        """
        key = (os.path.realpath(wanted.folder or ""), fingerprint(choices))
        with self._lock:
            group = self._groups.get(key)
            if group is not None and any(path.name == wanted.model for path in group.models):
                _warn(group)
                group = None
            if group is None:
                group = self._groups[key] = Group()
            self._users[id(group)] += 1
        try:
            yield group
        finally:
            self._leave(key, group)

    def warn_of_open(self) -> None:
        """Log the groups that are open still."""
        with self._lock:
            groups = list(self._groups.values())
        for group in groups:
            _warn(group)

    def _leave(self, key: Hashable, group: Group) -> None:
        with self._lock:
            self._users[id(group)] -= 1
            unused = not self._users[id(group)]
            over = group.finished or (unused and not group.models)
            if over and self._groups.get(key) is group:
                del self._groups[key]
            if unused:
                del self._users[id(group)]
                over = over or self._groups.get(key) is not group
        if unused and over:
            group.close()


def _warn(group: Group) -> None:
    pending = group.pending()
    if pending:
        _log.warning(
            "a share group was never stopped: %s cannot be loaded. Compile its last model with "
            "ep.stop_share_ep_contexts=1.",
            ", ".join(repr(str(path)) for path in pending),
        )


open_groups = OpenGroups()
"""Of this process."""

atexit.register(open_groups.warn_of_open)
