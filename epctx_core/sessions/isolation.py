"""Isolation of EPs in other processes by an installed package; few sessions need it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from epctx_core.options import Isolation
from epctx_core.plugin import ExecutionProvider
from epctx_core.registry.entries import blame_entry, entry_error, import_entry

if TYPE_CHECKING:
    from epctx_core.options import SessionConfig
    from epctx_core.plugin import ProcessIsolation, Purpose
    from epctx_core.registry.installed import EntryPoint
    from epctx_core.registry.records import PluginRecord

_log = logging.getLogger("epctx.providers")

GROUP = "epctx.isolation"
"""One entry for each `epctx_core.plugin.ProcessIsolation`."""
ISOLATION = "isolation"
"""Noun for it in messages."""
_WHY = (
    "works in its own process unless ep.context_trust_unverified=1: a payload without "
    "digests could end this one"
)


def isolate(
    record: PluginRecord,
    cls: type[ExecutionProvider],
    config: SessionConfig,
    purpose: Purpose,
    *,
    contain: bool = False,
) -> type[ExecutionProvider]:
    """Return the class by whose instances an EP works in another process.

    Args:
        record, cls: the EP.
        config: says how much of its work, and the limits.
        purpose: of the instances.
        contain: whether all its work is done there, whatever the host set; see
            `ProviderSession.start`.

    Raises:
        PackageMissing: what isolates EPs is not installed.
        PluginError: it failed.
    """
    mode = config.compile_isolation
    needed_by = ""
    # A host that isolates all EPs needs no reason for this one.
    if contain and mode is not Isolation.ALL:
        mode = Isolation.ALL
        _log.info("%s %s.", record.name, _WHY)
        needed_by = f"{record.name} {_WHY}; it"

    entry, isolation = import_isolation(config, needed_by)
    with blame_entry(entry, ISOLATION):
        isolated: Any = isolation.isolate(
            record,
            cls,
            purpose,
            mode=mode.value,
            seconds=config.isolation_seconds,
            max_bytes=config.isolation_bytes,
        )

    is_ep = isinstance(isolated, type) and issubclass(isolated, ExecutionProvider)
    if not is_ep or (contain and isolated is cls):
        problem = f"gave {isolated!r:.80} for {record.name}, which it was to isolate"
        hint = "It returns a class of proxies; see epctx_core.plugin.ProcessIsolation."
        raise entry_error(entry, ISOLATION, problem, hint)

    return isolated  # type: ignore[no-any-return]


def import_isolation(
    config: SessionConfig, needed_by: str = ""
) -> tuple[EntryPoint, ProcessIsolation]:
    """Return what isolates EPs and reads strange models, after its entry point; see
    `import_entry`. By default the host's option needs it.
    """
    isolated = config.isolation.value or "compile, which ep.compile_timeout includes,"
    return import_entry(
        GROUP,
        config.isolated_by,
        ISOLATION,
        needed_by=needed_by or f"ep.isolate={isolated}",
    )
