"""The libraries that the core needs or can use: which there are, and whether they are new enough.

What is needed is read from the metadata of epctx-core itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from epctx_cli.doctor.findings import Remark, note, problem

CORE = "epctx-core"
_NOT_LISTED = frozenset({"all", "test"})
"""Extras: of all packages the others have the libraries, and users test nothing."""
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)\s*(\[[^]]*\])?\s*\(?(?P<bounds>[^;()]*)\)?\s*"
    r"(;.*extra\s*==\s*['\"](?P<extra>[\w.-]+)['\"])?.*"
)
_BOUND = re.compile(r"(?P<relation>>=|<=|==|!=|<|>)\s*(?P<version>[\w.]+)")
_WHAT_FOR = {"ort": "fast CPU kernels", "cli": "prettier tables"}


@dataclass(frozen=True, kw_only=True)
class Library:
    """One library.

    Attributes:
        name: the distribution's.
        bounds: the versions that will do, as written.
        extra: the extra of epctx-core that brings it; empty for what is always needed.
        version: the one installed, or None.
        fits: whether that is within the bounds; None where nothing is installed.
    """

    name: str
    bounds: str
    extra: str
    version: str | None
    fits: bool | None

    def as_dict(self) -> dict[str, Any]:
        """Return its form in JSON."""
        return {
            "name": self.name,
            "required": self.bounds,
            "extra": self.extra or None,
            "version": self.version,
            "fits": self.fits,
        }


def libraries() -> list[Library] | None:
    """Return what epctx-core needs and can use; None where it is not installed, only importable."""
    from epctx_core.registry.discovery import PackageNotFoundError, distribution

    try:
        requirements: Sequence[str] = distribution(CORE).requires or ()
    except PackageNotFoundError:
        return None
    matches = [match for text in requirements if (match := _REQUIREMENT.fullmatch(text.strip()))]
    return [_library(match) for match in matches if match["extra"] not in _NOT_LISTED]


def _library(match: re.Match[str]) -> Library:
    version = installed_version(match["name"])
    bounds = match["bounds"].strip()
    return Library(
        name=match["name"],
        bounds=bounds,
        extra=match["extra"] or "",
        version=version,
        fits=None if version is None else within(version, bounds),
    )


def installed_version(name: str) -> str | None:
    """Return a distribution's version, or None if it is not installed."""
    from epctx_core.registry.discovery import PackageNotFoundError, distribution

    try:
        return str(distribution(name).version)
    except PackageNotFoundError:
        return None


def within(version: str, bounds: str) -> bool:
    """Whether a version is within bounds such as `>=1.23,<2`, by its numbers alone."""
    number = _numbers(version)
    verdicts = {
        ">=": lambda other: number >= other,
        "<=": lambda other: number <= other,
        "==": lambda other: number == other,
        "!=": lambda other: number != other,
        "<": lambda other: number < other,
        ">": lambda other: number > other,
    }
    return all(verdicts[b["relation"]](_numbers(b["version"])) for b in _BOUND.finditer(bounds))


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a release without trailing zeros: 1.0 and 1.0.0 are one version."""
    found = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def examine(found: Sequence[Library] | None) -> Iterator[Remark]:
    """Say what is missing or too old, with the command that mends it."""
    if found is None:
        yield note(
            "epctx-core is not installed, it is run from its source; versions of libraries were not compared.",
            "pip install it to have them compared: plugins need it installed anyway.",
        )
        return
    for library in found:
        if library.version is None and not library.extra:
            yield problem(f"{library.name} is not installed.", _install(f"{library.name}{library.bounds}"))
        elif library.fits is False:
            yield problem(
                f"{library.name} {library.version} is installed; epctx-core needs {library.bounds}.",
                _install(f"{library.name}{library.bounds}"),
            )
        elif library.version is None:
            yield from _missing_extra(library)


def _missing_extra(library: Library) -> Iterator[Remark]:
    from importlib.util import find_spec

    if find_spec(library.name.replace("-", "_")) is not None:
        yield note(
            f"{library.name} comes from another distribution than {library.name}; it is used as it is."
        )
        return
    purpose = _WHAT_FOR.get(library.extra, library.extra)
    yield note(f"{library.name} is not installed ({purpose}).", _install(f"{CORE}[{library.extra}]"))


def _install(what: str) -> str:
    return f"python -m pip install '{what}'"
