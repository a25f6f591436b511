"""Options of EPs in a session: config entries of unknown ones, and those that a host
changes while the session lives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from epctx_core.errors import (
    InvalidArgument,
    NotImplementedByProvider,
    PluginError,
    suggestion,
)
from epctx_core.options.table import SESSION_OPTIONS
from epctx_core.sessions.plan import list_implementers
from epctx_core.sessions.routing import EP_SUFFIX, stem

if TYPE_CHECKING:
    from epctx_core.options import SessionOptions
    from epctx_core.registry import Registry

_DYNAMIC = "set_dynamic_options"


def set_dynamic_options(providers: Any, options: Mapping[str, str]) -> None:
    """Give each EP the options that it declares; one that declares none gets all, and
    checks them itself.

    Raises:
        NotImplementedByProvider: no EP of the session takes dynamic options.
        InvalidArgument: they are not a mapping of texts; no EP has such an option, or a
            value is not allowed.
        PluginError: an EP failed.
    """
    _check_texts(options)
    takers = list_implementers(providers.instances, _DYNAMIC)
    if not takers:
        raise NotImplementedByProvider(
            "no EP of this session takes dynamic options.",
            hint="Its EPs: "
            f"{', '.join(providers.instances.names) or 'the CPU EP alone'}.",
        )

    declared = {
        ep: {o.name: o for o in providers.choices[ep].cls.dynamic_options}
        for ep in takers
    }
    names = sorted({name for ep_options in declared.values() for name in ep_options})
    for key in options if all(declared.values()) else ():
        if key not in names:
            raise InvalidArgument(
                "no EP of this session has the dynamic option "
                f"{key!r}.{suggestion(key, names)}",
                hint=f"Those of {', '.join(declared)}: {', '.join(names)}.",
            )

    # All are checked before any EP gets one.
    for ep, ep_options in declared.items():
        for key in ep_options.keys() & options.keys():
            ep_options[key].parse(ep, options[key])
    for ep, ep_options in declared.items():
        part = {
            key: value
            for key, value in options.items()
            if not ep_options or key in ep_options
        }
        try:
            if part:
                providers.instances.call(ep, _DYNAMIC, options=part)
        except PluginError as error:
            if not isinstance(error.__cause__, ValueError):
                raise
            # The contract has an EP raise this for an option that it does not take.
            raise InvalidArgument(
                f"{ep} refuses the dynamic options: {error.__cause__}",
                ep=ep,
                hint=f"Given were {sorted(part)}.",
            ) from error


def _check_texts(options: object) -> None:
    """Check that dynamic options are a mapping of texts, which is not empty."""
    items = options.items() if isinstance(options, Mapping) else ()

    # Without the values, which may be secret.
    faults = [
        f"{key!r:.80} of type {type(key).__name__} has a value of type "
        f"{type(value).__name__}"
        for key, value in items
        if not (isinstance(key, str) and isinstance(value, str))
    ]
    if faults or not items:
        fault = (
            faults[0]
            if faults
            else f"this is an object of type {type(options).__name__}"
        )
        raise InvalidArgument(
            "dynamic options are a mapping that is not empty, in which key and "
            f"value must be text: {fault}.",
            hint='Give text, such as {"ep.dynamic.workload_type": "Efficient"}.',
        )


def refuse_unknown_entries(
    session: SessionOptions, registry: Registry, missing: Sequence[str]
) -> None:
    """Raise InvalidArgument for a config entry `ep.<name>.<key>` of an unknown EP: a
    typo, mostly.

    Args:
        session: has the entries.
        registry: the registry of EPs.
        missing: names of EPs that need not be installed.
    """
    starts = [f"ep.{record.name.lower()}." for record in registry.records()]
    stems = map(stem, missing)
    others = [f"ep.{name}{end}." for name in stems for end in ("", EP_SUFFIX)]
    for key in session.provider_option_keys:
        if not key.startswith((*starts, *others)):
            names = [
                *SESSION_OPTIONS,
                *(start + key.rpartition(".")[2] for start in starts),
            ]
            raise InvalidArgument(
                f"unknown session option {key!r}, which is not an option of an "
                f"installed EP either.{suggestion(key, names)}",
                hint="Options of one EP are written ep.<lower-case EP name>.<key>.",
            )
