"""Options of EPs that change while a session lives: checked for all EPs before any hears of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from epctx_core.errors import InvalidArgument, NotImplementedByProvider, PluginError, suggestion

if TYPE_CHECKING:
    from epctx_core.plugin import ProviderOption
    from epctx_core.sessions.providers import ProviderSession

_HOOK = "set_dynamic_options"
_FORM = 'Give text, such as {"ep.dynamic.workload_type": "Efficient"}.'


def set_dynamic_options(providers: ProviderSession, options: Mapping[str, str]) -> None:
    """Give each EP the options that it declares; one that declares none is given all, and judges itself.

    Raises:
        NotImplementedByProvider: no EP of the session takes dynamic options.
        InvalidArgument: nothing was given, no EP has such an option, or a value is not allowed.
        PluginError: an EP failed.
    """
    given = _checked(options)
    instances = providers.instances
    takers = [ep for ep in instances.names if instances.implements(ep, _HOOK)]
    if not takers:
        raise NotImplementedByProvider(
            "no EP of this session takes dynamic options.",
            hint=f"Its EPs: {', '.join(instances.names) or 'the CPU EP alone'}.",
        )
    declared = {ep: {o.name: o for o in providers.choices[ep].cls.dynamic_options} for ep in takers}
    _refuse_unknown(given, declared)
    wanted = {ep: _part_of(ep, given, known) for ep, known in declared.items()}
    for ep, part in wanted.items():
        if part:
            _give(providers, ep, part)


def _checked(options: object) -> dict[str, str]:
    if not isinstance(options, Mapping) or not options:
        raise InvalidArgument(
            "set_ep_dynamic_options takes a mapping of keys to values that is not empty.", hint=_FORM
        )
    for key, value in options.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidArgument(
                f"dynamic option {key!r:.80}: key and value must be text, not {value!r:.80}.", hint=_FORM
            )
    return dict(options)


def _refuse_unknown(given: Mapping[str, str], declared: Mapping[str, Mapping[str, ProviderOption]]) -> None:
    known = sorted({name for options in declared.values() for name in options})
    if not all(declared.values()):
        return
    for key in given:
        if key not in known:
            raise InvalidArgument(
                f"no EP of this session has the dynamic option {key!r}.{suggestion(key, known)}",
                hint=f"Those of {', '.join(declared)}: {', '.join(known)}.",
            )


def _part_of(ep: str, given: Mapping[str, str], known: Mapping[str, ProviderOption]) -> dict[str, str]:
    """Return what an EP is given; values of declared options are checked."""
    if not known:
        return dict(given)
    part = {key: value for key, value in given.items() if key in known}
    for key, value in part.items():
        known[key].parse(ep, value)
    return part


def _give(providers: ProviderSession, ep: str, options: Mapping[str, str]) -> None:
    try:
        providers.instances.call(ep, _HOOK, options=dict(options))
    except PluginError as error:
        if not isinstance(error.__cause__, ValueError):
            raise
        # What the contract has an EP raise for an option that it does not take.
        raise InvalidArgument(
            f"{ep} refuses the dynamic options: {error.__cause__}",
            ep=ep,
            hint=f"Given were {sorted(options)}.",
        ) from error
