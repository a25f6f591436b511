"""EPs under development: classes that EPCTX_PLUGIN names, without a package around them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from epctx_core.registry.discovery import CPU_PROVIDER, class_path
from epctx_core.registry.loading import Outcome, import_class
from epctx_core.registry.lookup import names_in
from epctx_core.registry.records import PluginRecord, PluginState

VARIABLE = "EPCTX_PLUGIN"
"""`module:Class`, several separated by commas."""


def import_developed(environment: Mapping[str, str], taken: Collection[str]) -> list[Outcome]:
    """Import the classes that the environment names; one that cannot be used is a BROKEN record.

    Only a class knows its EP type, so this is the one variable that has plugins imported. The record of
    a class that cannot be used has the text in the variable as its name.

    Args:
        environment: where to look for the variable.
        taken: EP types that the host registered itself.
    """
    outcomes: list[Outcome] = []
    for given in dict.fromkeys(names_in(environment.get(VARIABLE, ""))):
        outcome = _import(given)
        earlier = [other.record.name for other in outcomes if other.cls is not None]
        problem = _conflict(outcome.record.name, taken, earlier) if outcome.cls is not None else ""
        outcomes.append(Outcome(record=_broken(given, problem)) if problem else outcome)
    return outcomes


def _import(given: str) -> Outcome:
    target = class_path(given)
    if target is None:
        return Outcome(record=_broken(given, f"{VARIABLE} has {given!r}, not of the form module:Class"))
    outcome = import_class(_record(given, target), name=None)
    if outcome.cls is None:
        return outcome
    return replace(outcome, record=replace(outcome.record, sources=(outcome.cls.name,)))


def _conflict(name: str, taken: Collection[str], earlier: Collection[str]) -> str:
    if name == CPU_PROVIDER:
        return f"the EP type {CPU_PROVIDER} is built in"
    if name in taken:
        return f"the host registered a class of the EP type {name} itself"
    return f"{VARIABLE} names two classes of the EP type {name}" if name in earlier else ""


def _record(given: str, target: str) -> PluginRecord:
    return PluginRecord(
        name=given,
        sources=(given,),
        distribution=None,
        version=None,
        place=VARIABLE,
        state=PluginState.DISCOVERED,
        entry_point=target,
    )


def _broken(given: str, reason: str) -> PluginRecord:
    return replace(_record(given, ""), state=PluginState.BROKEN, reason=reason)
