"""Share groups that session options drive, and what a member of any group may be.

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

from epctx_core.compiling.group import Group
from epctx_core.errors import Fail, InvalidArgument
from epctx_core.options import WeightlessMode
from epctx_core.registry.forking import PerProcess
from epctx_core.sessions.shared_workspaces import fingerprint, refuse_isolated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from epctx_core.compiling.destination import Destination
    from epctx_core.graph.subgraph import GraphPartition
    from epctx_core.options import SessionConfig
    from epctx_core.sessions.providers import ProviderChoice
    from epctx_core.sessions.source import OpenModel

_log = logging.getLogger("epctx.sharing")

_FILES_ONLY = "A share group is context models in files with binaries in files beside them."


def check_shared_options(config: SessionConfig, *, embedded: bool, delivered: bool, in_memory: bool) -> None:
    """Raise InvalidArgument for options that leave nothing to share; before a model is read.

    Args:
        config: the session options.
        embedded: whether payloads are stored in the model.
        delivered: whether payloads go to the host's write callback.
        in_memory: whether the model is handed over as bytes or to a stream.
    """
    if embedded:
        raise InvalidArgument(
            "ep.context_embed_mode=1 and ep.share_ep_contexts=1 contradict each other: what is stored in each "
            "model is shared by none.",
            hint="Set ep.context_embed_mode=0 for a share group.",
        )
    if delivered:
        raise InvalidArgument("a share group cannot hand payloads to a write callback.", hint=_FILES_ONLY)
    refuse_isolated(config)
    if in_memory:
        raise InvalidArgument(
            "a model of a share group cannot be compiled to bytes or to a stream.", hint=_FILES_ONLY
        )
    if config.weightless is not WeightlessMode.NONE:
        raise InvalidArgument(
            "ep.enable_weightless_mode and ep.share_ep_contexts=1 contradict each other: without weights in the "
            "binary there is nothing to share.",
            hint="Leave one of the two out.",
        )


def check_grouped_options(config: SessionConfig) -> None:
    """Raise InvalidArgument for options that a model of a `ShareGroup` cannot have.

    Args:
        config: the model's session options.
    """
    check_shared_options(config, embedded=config.embed, delivered=False, in_memory=False)
    if config.stop_sharing:
        raise InvalidArgument(
            "ep.stop_share_ep_contexts=1 ends a group of session options, and a ShareGroup ends with its block or "
            "finish().",
            hint="Leave the option out; ep.share_ep_contexts=1 may stay.",
        )
    if config.context_file_path is not None:
        raise InvalidArgument(
            "ep.context_file_path names one model's output, and a ShareGroup places all of its models.",
            hint="Leave it out; give ShareGroup an output_dir, and compile() a name.",
        )


def check_member(model: OpenModel, wanted: Destination) -> None:
    """Raise for a model that cannot be a member where it shall go.

    Whether binaries may be written is looked at when the group ends and its models are known.

    Raises:
        InvalidArgument: a model that was compiled before: its payloads would not be the group's.
        EpctxError: see `Destination.check`.
    """
    if model.context_nodes:
        node = model.context_nodes[0]
        raise InvalidArgument(
            f"{model.source.where} is a context model already (EPContext node {node.name!r}), and a share group "
            "takes models that are not.",
            path=model.source.path,
            hint="Compile the model that it was made from.",
        )
    wanted.check({})


def shared_weight_bytes(members: Iterable[Iterable[GraphPartition]]) -> int:
    """Return what the members' weights have each by itself, less what they have together.

    Counted are the models' own bytes; an EP may store them in another type. Equal weights inside one member
    count once.
    """
    shared = 0
    known: set[tuple[str, str, int]] = set()
    for partitions in members:
        weights = {
            (partition.ep, weight.digest, weight.nbytes)
            for partition in partitions
            for weight in partition.weights.values()
        }
        shared += sum(nbytes for _, _, nbytes in weights & known)
        known |= weights
    return shared


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
