"""The table of checks: what is checked, in which order, and how a check says that something is wrong.

A check is a plain function of a `Scene`. It returns if all is well, raises `CheckFailed` with what is
wrong, and `Skipped` where the EP gives it nothing to look at. Knows neither pytest nor any EP.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from epctx_conformance.checks import GROUPS
from epctx_conformance.requirements import NEEDS

if TYPE_CHECKING:
    from epctx_conformance.scene import Scene

CheckFunction: TypeAlias = "Callable[[Scene], None]"


class CheckFailed(AssertionError):
    """The EP does not do what the contract says.

    Args:
        message: what was found, and why it matters.
        hint: what the EP's author does about it.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}\n{hint}" if hint else message)
        self.message = message
        self.hint = hint


class Skipped(Exception):
    """A check has nothing to look at in this EP; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check.

    Attributes:
        group: one of `GROUPS`.
        title: what an EP that passes does, as a sentence without its full stop.
        needs: the fields of `Requirements` without which it says nothing.
        function: does it.
    """

    group: str
    title: str
    needs: tuple[str, ...]
    function: CheckFunction

    @property
    def name(self) -> str:
        """The title as an identifier; unique among all checks."""
        return re.sub(r"\W+", "_", self.title).strip("_").lower()


_CHECKS: dict[str, Check] = {}


def check(group: str, title: str, *, needs: Sequence[str] = ()) -> Callable[[CheckFunction], CheckFunction]:
    """Put a function into the table.

    Args:
        group: one of `GROUPS`; the checks of a group stand in the module of that name.
        title: what an EP that passes does, such as "a payload may be embedded".
        needs: fields of `Requirements`; the check is skipped where one of them is False.

    Raises:
        ValueError: an unknown group or need, or a title that is taken.
    """
    unknown = [need for need in needs if need not in NEEDS]
    if group not in GROUPS or unknown:
        raise ValueError(f"check {title!r}: no such group or need: {group!r}, {unknown}")

    def add(function: CheckFunction) -> CheckFunction:
        made = Check(group=group, title=title, needs=tuple(needs), function=function)
        if made.name in _CHECKS:
            raise ValueError(f"there are two checks with the title {title!r}")
        _CHECKS[made.name] = made
        return function

    return add


@cache
def all_checks() -> tuple[Check, ...]:
    """Return every check, by group in the order of `GROUPS`, and within one as written."""
    for group in GROUPS:
        import_module(f"epctx_conformance.checks.{group}")
    order = list(GROUPS)
    return tuple(sorted(_CHECKS.values(), key=lambda made: order.index(made.group)))


def chosen_checks(only: Sequence[str] | None = None) -> tuple[Check, ...]:
    """Return the checks of some groups, or of some names; None for all.

    Raises:
        ValueError: there is no such group or check.
    """
    if only is None:
        return all_checks()
    wanted = set(only)
    chosen = tuple(made for made in all_checks() if {made.group, made.name} & wanted)
    unknown = wanted - {made.group for made in chosen} - {made.name for made in chosen}
    if unknown:
        raise ValueError(
            f"no group or check is called {', '.join(sorted(unknown))}; groups: {', '.join(GROUPS)}"
        )
    return chosen
