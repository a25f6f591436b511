"""Isolation of sessions and other work in another process, by an installed package; few
hosts need it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from epctx_core.registry.entries import blame_entry, import_entry
from epctx_core.sessions.host import host_call

if TYPE_CHECKING:
    from epctx_core.options import SessionConfig
    from epctx_core.plugin import ProcessIsolation
    from epctx_core.registry.installed import EntryPoint
    from epctx_core.sessions.stage_values import Chosen
    from epctx_core.sessions.stages import Request

_log = logging.getLogger("epctx.providers")

GROUP = "epctx.isolation"
"""One entry for each `epctx_core.plugin.ProcessIsolation`."""
ISOLATION = "isolation"
"""Noun for it in messages."""


def import_isolation(
    config: SessionConfig, needed_by: str = ""
) -> tuple[EntryPoint, ProcessIsolation]:
    """Return what works in other processes, after its entry point; see `import_entry`.
    By default the host's option needs it.
    """
    isolated = config.isolation.value or "compile, which ep.compile_timeout includes,"
    return import_entry(
        GROUP,
        config.isolated_by,
        ISOLATION,
        needed_by=needed_by or f"ep.isolate={isolated}",
    )


@contextmanager
def use_isolation(
    config: SessionConfig, needed_by: str = ""
) -> Iterator[ProcessIsolation]:
    """Yield what works in other processes, to which its faults are attributed.

    Raises:
        EpctxError: see `import_isolation`.
        PluginError: it raised something else than an error of epctx.
    """
    entry, isolation = import_isolation(config, needed_by)
    with blame_entry(entry, ISOLATION):
        yield isolation


@host_call("loading the model")
def load_elsewhere(request: Request, needed_by: str = "") -> Any:
    """Return the `SessionState` of a session that another process loads and runs; see
    `import_isolation`.
    """
    with use_isolation(request.config, needed_by) as isolation:
        return isolation.load(request)


def load_contained(work: Chosen, ep: str) -> Any:
    """Return the `SessionState` of a session that another process loads and runs
    because a payload of an EP could end this one.
    """
    reason = (
        f"the session of {ep} works in its own process unless "
        "ep.context_trust_unverified=1: a payload without digests could end this one"
    )
    _log.info("%s.", reason)
    work.close()
    return load_elsewhere(work, f"{reason}; it")
