"""Cases that may end the process of an EP, such as damaged payloads: tried one after
another in another process.

Each is noted before it is tried, so that the one that ended the process can be named.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from epctx_conformance.other_process import ProcessEnded, call_in_other_process
from epctx_conformance.table import CheckFailed, Skipped

if TYPE_CHECKING:
    from epctx_conformance.harness import Harness

Cases: TypeAlias = "Iterator[tuple[str, Callable[[], None]]]"
"""Texts such as "a payload cut in half", and functions that raise CheckFailed."""

_CHECK = "Check everything before native code reads it."
_CHECK_PAYLOADS = (
    "Check type, version, lengths and digests before native code reads a payload. If "
    "that cannot be done, declare needs_verified_payloads = True: the core then "
    "checks every byte first."
)
_SPARED = (
    "The EP declares needs_verified_payloads: the core gives it no byte that is not "
    "checked."
)


class Harm(CheckFailed):
    """A payload that is damaged or not the EP's did harm instead of being refused."""


def try_cases(
    harness: Harness,
    cases: Callable[..., Cases],
    arguments: Mapping[str, Any],
    *,
    of_payloads: bool = True,
) -> None:
    """Try cases in another process, up to the first that fails.

    Args:
        harness: provides EP, requirements and options.
        cases: `f(harness, **arguments)` of the kit, called there.
        arguments: what JSON can hold.
        of_payloads: whether the cases are other bytes than the EP wrote, which an EP
            with `needs_verified_payloads` need not survive or refuse.

    Raises:
        CheckFailed: a case failed, or ended the process.
        Skipped: the EP need not do better, or another process cannot find its class.
    """
    is_spared = of_payloads and harness.provider.needs_verified_payloads
    notes = harness.folder() / "cases.jsonl"
    there = {
        "module": cases.__module__,
        "name": cases.__name__,
        "arguments": arguments,
        "notes": str(notes),
    }
    try:
        kind, message, more = call_in_other_process(harness, try_noted, there)
    except ProcessEnded as ended:
        if not notes.exists():
            raise
        what = json.loads(notes.read_text("utf-8").splitlines()[-1])
        if is_spared:
            raise Skipped(f"{what} ends its process. {_SPARED}") from ended
        hint = _CHECK_PAYLOADS if of_payloads else _CHECK
        raise CheckFailed(
            f"{what} ends its process: {ended.message}", hint=hint
        ) from ended
    if kind == Harm.__name__ and is_spared:
        raise Skipped(f"{message} {_SPARED}")
    if kind:
        raise CheckFailed(message, hint=more)


def try_noted(
    harness: Harness,
    *,
    module: str,
    name: str,
    arguments: Mapping[str, Any],
    notes: str,
) -> tuple[str, str, str]:
    """Note and try the cases in this process; return the first error's class, message
    and hint.
    """
    cases: Callable[..., Cases] = getattr(import_module(module), name)
    for what, act in cases(harness, **arguments):
        with Path(notes).open("a", encoding="utf-8") as file:
            file.write(json.dumps(what) + "\n")
        try:
            act()
        except CheckFailed as failed:
            return type(failed).__name__, failed.message, failed.hint
        except Exception as error:  # noqa: BLE001 - a check that fails, as it would in the kit's own process
            return "error", f"{what} ends in {type(error).__name__}: {error}", ""
    return "", "", ""
