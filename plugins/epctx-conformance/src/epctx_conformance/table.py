"""Table of checks: their groups, order, titles and the abilities that they need, and
the errors by which they end.

A check is a function of a `Harness`. It returns if the EP passes, raises `CheckFailed`
if it does not, and `Skipped` if it does not apply to the EP. Knows neither pytest nor
any EP.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeAlias

from epctx_conformance import checks

CheckFunction: TypeAlias = Callable[[Any], None]

GROUPS = {
    "signatures": "the class, its hooks and its options",
    "claims": "nodes of a graph that the EP takes",
    "partitions": "partitions that its claims become",
    "boundaries": "values that flow in and out of a partition, and their order",
    "determinism": "the same work gives the same bytes",
    "contexts": "context models: written, moved, handed over, loaded",
    "nodes": "EPContext nodes, as the EP describes them and as they come back",
    "export": "compiling without a device, and the life of an instance",
    "sharing": "share groups",
    "payloads": "payloads that are damaged or not the EP's",
    "values": "types, shapes and special numbers",
    "concurrency": "threads and sessions",
    "side_effects": "nothing done behind the host's back",
    "cancellation": "cancellation by the host",
    "node_models": "agreement on the models of single operators that onnx provides",
}
"""Groups in the order of the report, each with its subject."""


class CheckFailed(AssertionError):
    """The EP does not do what the contract says.

    Args:
        message: what the EP did and why that is wrong.
        hint: what the EP's author can do about it.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}\n{hint}" if hint else message)
        self.message = message
        self.hint = hint


class Skipped(Exception):
    """A check does not apply to this EP; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """Abilities of an EP.

    Checks of an ability that is False are skipped, and the report says so.

    Attributes:
        partitions: it compiles partitions; False for an EP of kernels only.
        export: what it compiles can be saved and loaded; False for an EP without the
            context hooks.
        embed: its payloads may stand inside the model.
        share_groups: models of a share group can use one payload.
        weight_sharing: weights that models of a share group have in common are stored
            once.
        deterministic: the same compile gives the same bytes.
        dynamic_shapes: dimensions may be open until a run.
        scalars: tensors without dimensions.
        zero_size: tensors without elements.
        control_flow_bodies: it takes nodes in subgraphs of If, Loop and Scan.
        several_partitions: it compiles any number of partitions of one model.
        load_in_parts: it loads the nodes of one payload in several calls of
            `load_context`; False for an EP that compares all of them with the payload
            at once.
        concurrency: sessions and runs in several threads at once are safe.
        in_process: it starts no programs; False for an EP whose compiler is a command.
        compatibility: it writes compatibility info and validates it.
        tolerance: the largest difference of a result from the CPU EP's, as a share of
            the largest number.
        seconds: time limit of one check.

    Examples:
        >>> Requirements(dynamic_shapes=False, tolerance=1e-2)
    """

    partitions: bool = True
    export: bool = True
    embed: bool = True
    share_groups: bool = True
    weight_sharing: bool = True
    deterministic: bool = True
    dynamic_shapes: bool = True
    scalars: bool = True
    zero_size: bool = True
    control_flow_bodies: bool = True
    several_partitions: bool = True
    load_in_parts: bool = True
    concurrency: bool = True
    in_process: bool = True
    compatibility: bool = True
    tolerance: float = 1e-3
    seconds: float = 120.0


NEEDS = frozenset(
    field.name for field in fields(Requirements) if isinstance(field.default, bool)
)
"""Abilities that a check may need."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """Check of the kit.

    Attributes:
        group: one of `GROUPS`; of the kit's own for another kind of plugin.
        title: the behaviour of an EP that passes, as a sentence without its full stop.
        needs: the fields of `Requirements` without which it is skipped.
        function: the check itself.
    """

    group: str
    title: str
    needs: tuple[str, ...]
    function: CheckFunction

    @property
    def name(self) -> str:
        """The title as an identifier; unique among all checks."""
        return re.sub(r"\W+", "_", self.title).strip("_").lower()


_CHECKS: list[Check] = []


def check(
    group: str, title: str, *, needs: Sequence[str] = ()
) -> Callable[[CheckFunction], CheckFunction]:
    """Put a function into the table.

    Args:
        group: one of `GROUPS`.
        title: the behaviour of an EP that passes, such as "it refuses a truncated
            payload"; unique.
        needs: fields of `Requirements`; the check is skipped where one of them is
            False.
    """

    def add(function: CheckFunction) -> CheckFunction:
        _CHECKS.append(
            Check(group=group, title=title, needs=tuple(needs), function=function)
        )
        return function

    return add


@cache
def all_checks() -> tuple[Check, ...]:
    """Return every check, ordered by `GROUPS`, and within a group as written."""
    for module in iter_modules(checks.__path__):
        import_module(f"{checks.__name__}.{module.name}")
    order = list(GROUPS)
    return tuple(sorted(_CHECKS, key=lambda made: order.index(made.group)))


def chosen_checks(only: Sequence[str] | None = None) -> tuple[Check, ...]:
    """Return the checks of some groups, or of some names; None for all.

    Raises:
        ValueError: there is no such group or check.
    """
    if only is None:
        return all_checks()
    names = set(only)
    chosen = tuple(made for made in all_checks() if {made.group, made.name} & names)
    unknown = names - {made.group for made in chosen} - {made.name for made in chosen}
    if unknown:
        raise ValueError(
            f"unknown group or check {', '.join(sorted(unknown))}; groups: "
            f"{', '.join(GROUPS)}"
        )
    return chosen
