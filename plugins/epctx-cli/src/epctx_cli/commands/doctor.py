"""`epctx doctor`: looks at the environment, libraries, plugins, commands and variables, and says what to fix."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

import epctx_core
from epctx_cli import text
from epctx_cli.arguments import CommandParser, add_common
from epctx_cli.command_table import OWN, added_commands
from epctx_cli.exit_codes import ExitCode
from epctx_cli.plugin_trial import Trial, try_all
from epctx_core import default_registry
from epctx_core.errors import InvalidArgument
from epctx_core.ext import suggestion

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

    from epctx_cli.console import Console

CORE = "epctx-core"
EP_GROUP = "epctx.execution_providers"
ENGINE_GROUP = "epctx.engines"
OLDEST_PYTHON = (3, 11)
PREFIX = "EPCTX_"
VARIABLES = MappingProxyType(
    {
        "EPCTX_PLUGINS": "the only plugins that may be used",
        "EPCTX_DISABLE_PLUGINS": "plugins that are kept out",
        "EPCTX_PREFER": "which distribution brings an EP that several have",
        "EPCTX_CACHE_DIR": "the folder of the compile cache",
        "EPCTX_RECEIPTS": "the folder of receipts of checked files",
        "EPCTX_CACHE_SIZE": "what the compile cache may take, such as 10G",
        "EPCTX_CACHE_TRUST_STAT": "0 to read models and weights at every use of the cache",
        "EPCTX_ENGINE": "the engine that runs what no EP takes",
        "EPCTX_TRACE": "1 to log every call of a hook",
    }
)
"""Name to what it says."""
_WHAT_FOR = {"ort": "fast CPU kernels"}
_NOT_LISTED = frozenset({"all", "test"})
"""Extras: of all packages the others have the libraries, and users test nothing."""
_NAME = re.compile(r"\s*([\w.-]+)")


@dataclass(frozen=True, kw_only=True)
class Remark:
    """One finding.

    Attributes:
        severity: whether something does not work until it is fixed, or only may surprise somebody.
        message: a sentence.
        hint: what to do, or empty.
    """

    severity: Literal["problem", "note"]
    message: str
    hint: str = ""


def _problem(message: str, hint: str = "") -> Remark:
    return Remark(severity="problem", message=message, hint=hint)


def _note(message: str, hint: str = "") -> Remark:
    return Remark(severity="note", message=message, hint=hint)


def add_arguments(parser: CommandParser) -> None:
    """Declare the command's options."""
    add_common(parser)
    parser.set_defaults(run=run)


def run(_arguments: argparse.Namespace, console: Console) -> int:
    """Examine everything; 1 if something has to be fixed."""
    facts, found = _facts(), libraries()
    variables = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(PREFIX)}
    trials, remarks = _plugins(console)
    remarks = [
        *_examine_environment(),
        *examine_libraries(found),
        *_examine_variables(variables, any_plugin=bool(trials)),
        *remarks,
        *_examine_commands(),
    ]
    ok = all(remark.severity != "problem" for remark in remarks)
    console.table(("", ""), list(facts.items()))
    _tell_parts(found or (), trials, variables, console)
    _tell_remarks(remarks, console)
    console.result(
        {
            "ok": ok,
            "environment": facts,
            "libraries": [asdict(library) for library in found or ()],
            "plugins": [trial.record.as_dict() for trial in trials],
            "variables": variables,
            "findings": [asdict(remark) for remark in remarks],
        }
    )
    return ExitCode.DONE if ok else ExitCode.FAILED


def _tell_parts(
    found: Sequence[Library], trials: Sequence[Trial], variables: Mapping[str, str], console: Console
) -> None:
    tables: tuple[tuple[tuple[str, ...], list[tuple[str, ...]]], ...] = (
        (
            ("library", "installed", "needed", "for"),
            [(each.name, each.version or "-", each.required, each.extra or "everything") for each in found],
        ),
        (
            ("plugin", "distribution", "state", "vendor"),
            [(t.record.name, t.record.origin, t.record.state.value, t.record.vendor or "-") for t in trials],
        ),
        (
            ("variable", "value", "says"),
            [(name, value, VARIABLES.get(name, "nothing")) for name, value in variables.items()],
        ),
    )
    for header, rows in tables:
        if rows:
            console.table(header, rows)


def _tell_remarks(remarks: Sequence[Remark], console: Console) -> None:
    for remark in sorted(remarks, key=lambda r: r.severity != "problem"):
        console.say(f"\n{remark.severity}: {remark.message}")
        if remark.hint:
            console.say(text.indented(remark.hint))
    problems = sum(remark.severity == "problem" for remark in remarks)
    notes = len(remarks) - problems
    said = " and ".join(text.counted(n, word) for n, word in ((problems, "problem"), (notes, "note")) if n)
    console.say(f"\n{'not ok' if problems else 'ok'}: {said or 'nothing to fix'}")


# -- the interpreter and its environment -----------------------------------------------------------


def _facts() -> dict[str, str]:
    kind = "virtual environment" if sys.prefix != sys.base_prefix else "no virtual environment"
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "environment": f"{sys.prefix} ({kind})",
        "platform": f"{platform.system()} {platform.release()} on {platform.machine()}",
        CORE: f"{epctx_core.__version__} in {Path(epctx_core.__file__).parent}",
    }


def _examine_environment() -> Iterator[Remark]:
    if sys.version_info < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        yield _problem(
            f"Python {platform.python_version()} is older than {oldest}.", f"Use Python {oldest} or newer."
        )
    if sys.platform != "linux":
        yield _note(f"epctx is tested on Linux; this is {platform.system()}.")
    # The commonest reason why an installed plugin is not found.
    pip = shutil.which("pip")
    if pip is None or Path(pip).parent.resolve().is_relative_to(Path(sys.prefix).resolve()):
        return
    here = f"{sys.executable} -m pip install"
    elsewhere = f"`pip` on the PATH ({pip}) installs into another environment"
    if plugins := sorted(_plugins_under(Path(pip).parent.parent)):
        yield _problem(
            f"{elsewhere}, which has plugins that are not here: {', '.join(plugins)}.",
            f"{here} {' '.join(plugins)}",
        )
    else:
        yield _note(f"{elsewhere}.", f"Here it is: {here} …")


def _plugins_under(prefix: Path) -> Iterator[str]:
    """Yield the distributions of another environment that bring EPs, by a look at its metadata."""
    own = {Path(entry).resolve() for entry in sys.path if entry}
    for folder in prefix.glob("lib/python*/*-packages"):
        if folder.resolve() not in own:
            for points in folder.glob("*.dist-info/entry_points.txt"):
                if EP_GROUP in points.read_text("utf-8", errors="replace"):
                    yield canonicalize_name(points.parent.name.partition("-")[0])


# -- libraries -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library that epctx-core, or a package that one of its extras installs, needs or can use.

    Attributes:
        name: the distribution's.
        user: the distribution that needs it.
        required: the versions that will do, as written.
        extra: the extra of epctx-core that installs it; None for what is always needed.
        version: the one installed, or None.
        fits: whether that is within the bounds; None where nothing is installed.
    """

    name: str
    user: str
    required: str
    extra: str | None
    version: str | None
    fits: bool | None


def libraries() -> list[Library] | None:
    """Return what epctx-core needs and can use; None where it is not installed, only importable."""
    found: dict[str, Library] = {}
    try:
        core = distribution(CORE)
    except PackageNotFoundError:
        return None
    extras = [extra for extra in core.metadata.get_all("Provides-Extra") or () if extra not in _NOT_LISTED]
    for extra in ("", *extras):
        ahead = [core]
        while ahead:
            for library in _needs(ahead.pop(), extra):
                is_new = library.name != CORE and found.setdefault(library.name, library) is library
                if is_new and library.name.startswith("epctx-") and library.version is not None:
                    ahead.append(distribution(library.name))
    return list(found.values())


def _needs(package: Distribution, extra: str) -> Iterator[Library]:
    """Yield what a package needs here with an extra of epctx-core."""
    for need in map(Requirement, package.requires or ()):
        if need.marker is None or need.marker.evaluate({"extra": extra}):
            version = installed_version(need.name)
            yield Library(
                name=need.name,
                user=package.metadata["Name"],
                required=str(need.specifier),
                extra=extra or None,
                version=version,
                fits=None if version is None else within(version, need.specifier),
            )


def installed_version(name: str) -> str | None:
    """Return a distribution's version, or None if it is not installed."""
    try:
        return distribution(name).version
    except PackageNotFoundError:
        return None


def within(version: str, bounds: SpecifierSet) -> bool:
    """Whether an installed version, also one before a release, is within bounds; one that is no version is not."""
    try:
        return bounds.contains(version, prereleases=True)
    except InvalidVersion:
        return False


def examine_libraries(found: Sequence[Library] | None) -> Iterator[Remark]:
    """Say what is missing or too old, with the command that fixes it."""
    if found is None:
        yield _note(
            "epctx-core is not installed, it is run from its source; versions of libraries were not compared.",
            "pip install it to have them compared: plugins need it installed anyway.",
        )
        return
    for library in found:
        install = f"python -m pip install '{library.name}{library.required}'"
        if library.fits is False:
            yield _problem(
                f"{library.name} {library.version} is installed; {library.user} needs {library.required}.",
                install,
            )
        elif library.version is not None:
            continue
        elif not library.extra:
            yield _problem(f"{library.name} is not installed.", install)
        elif find_spec(library.name.replace("-", "_")) is not None:
            yield _note(
                f"{library.name} comes from another distribution than {library.name}; it is used as it is."
            )
        else:
            purpose = _WHAT_FOR.get(library.extra, library.extra)
            yield _note(
                f"{library.name} is not installed ({purpose}).",
                f"python -m pip install '{CORE}[{library.extra}]'",
            )


# -- plugins and commands --------------------------------------------------------------------------


def _plugins(console: Console) -> tuple[list[Trial], list[Remark]]:
    """Try every plugin; a variable that cannot be read keeps all of them from being found."""
    try:
        trials = try_all(default_registry.records(), tell=console.debug)
    except InvalidArgument as error:
        return [], [_problem(error.message, error.hint or "")]
    return trials, [*_examine_plugins(trials), *_examine_packages(trials)]


def _examine_plugins(trials: Sequence[Trial]) -> Iterator[Remark]:
    """Say which plugins cannot be used, why, and what to do."""
    if not trials:
        yield _note(
            "no plugin is installed: models run on the CPU EP, and nothing can be compiled.",
            "Install one, or begin one with `epctx plugins new`.",
        )
    for trial in trials:
        record = trial.record
        if record.usable and record.reason:
            hints = dict.fromkeys(said.hint for said in record.availability.values() if said.hint)
            yield _note(f"{record.label}: {record.reason}.", " ".join(hints))
        elif not record.usable:
            why, hint = default_registry.explain_unusable(record)
            harmless = record.state.value in {"disabled", "removed"} or record.passed_over
            yield (_note if harmless else _problem)(f"{why}.", hint)


def _examine_packages(trials: Sequence[Trial]) -> Iterator[Remark]:
    """Say which installed packages need epctx-core and yet bring no EP that was found.

    A library that another of them needs, and what an extra of epctx-core or a command of ours is in, is right so.
    """
    needs: dict[str, frozenset[str]] = {}
    for each in distributions():
        try:
            needed = frozenset(canonicalize_name(m[1]) for n in each.requires or () if (m := _NAME.match(n)))
            needs.setdefault(canonicalize_name(each.metadata["Name"]), needed)
        except Exception:  # noqa: BLE001, S112 - metadata of packages that are none of ours fails in many ways
            continue
    ours = {name for name, needed in needs.items() if CORE in needed}
    bringing = {canonicalize_name(t.record.distribution) for t in trials if t.record.distribution}
    bringing |= {canonicalize_name(command.package) for command in (*OWN, *added_commands())}
    bringing |= {canonicalize_name(package) for package in _engines().values()}
    needed_by_others = {needed for name in (*ours, CORE) for needed in needs.get(name, ())}
    for name in sorted(ours - bringing - needed_by_others):
        yield _note(
            f"{name} needs epctx-core, but has no entry point of the group {EP_GROUP}.",
            "Right for a library. If it should bring an EP, add the entry point and install it again.",
        )


def _examine_commands() -> Iterator[Remark]:
    """Say which commands of other packages are not used, and which are ambiguous."""
    own = {command.name for command in OWN}
    packages: dict[str, list[str]] = {}
    for command in added_commands():
        packages.setdefault(command.name, []).append(f"{command.package} {command.version}")
    for name, those in packages.items():
        if name in own:
            yield _note(
                f"the command {name!r} of {' and '.join(those)} is not used: epctx has one of that name."
            )
        elif len(those) > 1:
            yield _problem(
                f"the command {name!r} is ambiguous: {' and '.join(those)} have it.",
                "Uninstall all but one of them.",
            )


def _engines() -> dict[str, str]:
    """Return the engines that packages have, by name, and the distribution of each."""
    found: dict[str, str] = {}
    for each in distributions():
        with suppress(Exception):  # metadata of packages that are none of ours fails in many ways
            for entry in each.entry_points.select(group=ENGINE_GROUP):
                found[entry.name] = each.metadata["Name"]
    return found


# -- environment variables -------------------------------------------------------------------------


def _examine_variables(variables: Mapping[str, str], *, any_plugin: bool) -> Iterator[Remark]:
    """Say which variables nobody reads, and which name a plugin or an engine that is not there."""
    for name in variables:
        if name not in VARIABLES:
            yield _problem(
                f"the environment variable {name} is none of epctx's.{suggestion(name, VARIABLES)}",
                f"Unset it, or use one of {', '.join(VARIABLES)}.",
            )
    engine, engines = variables.get("EPCTX_ENGINE"), {"onnx.reference", *_engines()}
    if engine and engine not in engines:
        yield _problem(
            f"EPCTX_ENGINE names {engine!r}, an engine that is not installed.{suggestion(engine, engines)}",
            "Correct the name, or unset the variable.",
        )
    for sentence in default_registry.misspelt() if any_plugin else ():
        yield _problem(f"{sentence}.", "Correct the name, or unset the variable.")
