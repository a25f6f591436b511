"""`epctx doctor`: check the environment, libraries, plugins, commands and variables; or
say where a model would run.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from importlib_metadata import distributions
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import epctx_core
from epctx_cli import text
from epctx_cli.arguments import (
    CPU_EP,
    CommandParser,
    add_common,
    add_providers,
    session_options,
)
from epctx_cli.command_table import OWN, added_commands
from epctx_cli.entry_points import (
    ENGINE_GROUP,
    EP_GROUP,
    KINDS,
    explain_finder,
    find_entries,
    group_by_reason,
    is_duplicate,
)
from epctx_cli.exit_codes import ExitCode
from epctx_cli.libraries import (
    CORE,
    EpLibrary,
    Library,
    find_builds,
    is_importable,
    libraries,
    libraries_of_eps,
    unmet_requirements,
    within,
)
from epctx_cli.plugin_results import (
    DoctorFinding,
    DoctorResult,
)
from epctx_cli.plugin_trial import Trial, try_all
from epctx_core import (
    default_registry,
    get_available_providers,
    get_ep_metadata,
    verify_model,
)
from epctx_core.errors import EpctxError, InvalidArgument, one_line, suggestion
from epctx_core.ext import install_command

if TYPE_CHECKING:
    from epctx_cli.console import Console
    from epctx_core import Placement, PluginRecord, SessionOptions

PREFIX = "EPCTX_"
VARIABLES = MappingProxyType(
    {
        "EPCTX_PLUGINS": "the only plugins that may be used",
        "EPCTX_DISABLE_PLUGINS": "plugins that are kept out",
        "EPCTX_PREFER": "the distribution to use for an EP that several provide",
        "EPCTX_CACHE_DIR": "the folder of the compile cache",
        "EPCTX_RECEIPTS": "the folder of receipts of checked files",
        "EPCTX_CACHE_SIZE": "what the compile cache may take, such as 10G",
        "EPCTX_CACHE_TRUST_STAT": (
            "0 to read models and weights at every use of the cache"
        ),
        "EPCTX_CACHE_SHARED": "the address of a cache that machines share",
        "EPCTX_CACHE_PUSH": "0 to put nothing into the shared cache",
        "EPCTX_ENGINE": "the engine that runs what no EP takes",
        "EPCTX_HOST_PLUGINS": "host plugins that wrap the hooks of EPs",
        "EPCTX_TRACE": "1 to log every call of a hook",
    }
)
"""Variables that epctx reads, with a description."""
ONNXRUNTIME = "onnxruntime"
"""Package of all builds of onnxruntime, whose distributions have names of their own."""
SLOW_IMPORT = 3.0
"""Seconds of an import from which on it is remarked on."""
_SHOWN = 200
"""Characters of a plugin's output that are shown."""
_PURPOSES = {"ort": "fast CPU kernels"}
_NAME = re.compile(r"\s*([\w.-]+)")
_INSTALL = re.compile(r"(\S+ -m )?pip install ")


def _problem(message: str, hint: str = "") -> DoctorFinding:
    return DoctorFinding(severity="problem", message=message, hint=hint)


def _note(message: str, hint: str = "") -> DoctorFinding:
    return DoctorFinding(severity="note", message=message, hint=hint)


def add_arguments(parser: CommandParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="show where this model would run, instead of checking everything",
    )
    add_providers(
        parser,
        ep_help="an EP to ask about MODEL; may be repeated (default: all that are "
        "usable, real ones first)",
    )
    add_common(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Check everything, or one model; 1 if something has to be fixed."""
    facts = _facts()
    requirements = libraries()
    vendors = libraries_of_eps(requirements or ())
    variables = {
        name: os.environ[name] for name in sorted(os.environ) if name.startswith(PREFIX)
    }
    placement = None
    if arguments.model is not None:
        session = session_options(arguments, console)
        placement = _place(arguments, session, console)
        records = default_registry.records()
        findings = [
            *_check_payloads(arguments.model, placement, session),
            *(
                _check_placement(arguments, placement)
                if arguments.ep
                else _check_not_asked(records)
            ),
        ]
        console.say(str(placement), wrap=False)
        console.note_simulated(
            row["ep"] for row in placement.eps if row["simulated"] and row["nodes"]
        )
    else:
        _require_model(arguments)
        records, findings = _check_all(requirements, vendors, variables, console)
        console.table(("", ""), list(facts.items()))
        _print_libraries(requirements or (), console)
        _print_plugins(records, vendors, console)
        values = [
            (name, value, VARIABLES.get(name, "nothing"))
            for name, value in variables.items()
        ]
        console.table(("variable", "value", "meaning"), values)
    _print_findings(findings, console)

    ok = all(finding.severity != "problem" for finding in findings)
    console.result(
        DoctorResult(
            ok=ok,
            environment=facts,
            libraries=requirements or (),
            libraries_of_eps=vendors,
            plugins=records,
            variables=variables,
            findings=findings,
            placement=placement,
        )
    )
    return ExitCode.DONE if ok else ExitCode.FAILED


def _check_all(
    requirements: Sequence[Library] | None,
    vendors: Sequence[EpLibrary],
    variables: Mapping[str, str],
    console: Console,
) -> tuple[list[PluginRecord], list[DoctorFinding]]:
    """Return the EPs of all plugins, each tried, and all findings."""
    trials, of_plugins = _plugins(console)
    findings = [
        *_check_environment(),
        *check_libraries(requirements),
        *(
            check_libraries(unmet_requirements([*requirements, *vendors]))
            if requirements is not None
            else ()
        ),
        *_check_libraries_of_eps(vendors),
        *_check_builds(requirements),
        *_check_variables(variables, any_plugin=bool(trials)),
        *of_plugins,
        *_check_commands(),
    ]
    return [trial.record for trial in trials], findings


# -- one model
# ------------------------------------------------------------------------------------


def _require_model(arguments: argparse.Namespace) -> None:
    """Raise InvalidArgument if options about a model were given without one."""
    if any(
        getattr(arguments, name)
        for name in (
            "ep",
            "config",
            "provider_option",
            "free_dimension",
            "custom_ops_library",
            "host_plugin",
        )
    ):
        raise InvalidArgument(
            "EPs and their options were given to `epctx doctor`, and no model.",
            hint="Name the model: epctx doctor MODEL --ep ...",
        )


def _place(
    arguments: argparse.Namespace, session: SessionOptions, console: Console
) -> Placement:
    """Ask the EPs for their claims, as a session would; nothing is compiled."""
    from epctx_core import explain_model
    from epctx_core.plugin import Purpose

    if not arguments.ep:
        for name in _list_usable():
            session.add_provider(name, optional=True)
    with console.progress("asking the EPs") as progress:
        progress.watch(session)
        return explain_model(arguments.model, session, purpose=Purpose.RUN).placement


def _list_usable() -> list[str]:
    """Return the usable EPs, simulated ones last; each is loaded to learn which."""
    simulated: dict[str, str] = {}
    for ep in get_available_providers():
        with suppress(EpctxError):
            simulated[ep] = get_ep_metadata(ep)["simulated"]
    return sorted(simulated, key=simulated.__getitem__)


def _check_placement(
    arguments: argparse.Namespace, placement: Placement
) -> Iterator[DoctorFinding]:
    """Yield a problem for each EP that was named and gets no node, with its first
    reason.
    """
    for row in placement.eps:
        if row["ep"] != CPU_EP and not row["nodes"]:
            reasons = [each for each in placement.left if each["ep"] == row["ep"]]
            why = f" It says: {reasons[0]['reason'].rstrip('.')}." if reasons else ""
            yield _problem(
                f"{row['ep']} takes no node of {Path(arguments.model).name}.{why}"
            )


def _check_payloads(
    model: str, placement: Placement, session: SessionOptions
) -> Iterator[DoctorFinding]:
    """Yield problems for each payload that a simulated EP would get and does not read,
    as it is a vendor's own; one has the line to install the vendor's.
    """
    if not any(
        row["simulated"] and "com.microsoft::EPContext" in row["operators"]
        for row in placement.eps
    ):
        return
    for finding in verify_model(model, session).findings:
        # An EP that has no check knows no remedy.
        if finding.hint and finding.code in {"container-not-checked", "not-checked"}:
            yield _problem(finding.message, finding.hint)


def _check_not_asked(records: Sequence[PluginRecord]) -> Iterator[DoctorFinding]:
    """Yield a problem for each EP that could not be asked, as it does not load or
    several distributions provide it.
    """
    unusable = [r for r in records if r.undecided or r.state.value == "broken"]
    # Of several distributions the reason is one.
    explained = dict(map(default_registry.explain_unusable, unusable))
    for why, hint in explained.items():
        yield _problem(f"{why}.", hint)


def _print_libraries(requirements: Sequence[Library], console: Console) -> None:
    """Print what epctx-core requires, or can use; for onnxruntime, the builds."""
    builds = " and ".join(
        f"{package.metadata['Name']} {package.version}"
        for package in find_builds(ONNXRUNTIME)
    )
    rows = [
        (
            library.name,
            library.version or (library.name == ONNXRUNTIME and builds) or "-",
            library.required,
            library.extra or "everything",
        )
        for library in requirements
    ]
    console.table(("library", "installed", "needed", "for"), rows)


def _print_plugins(
    records: Sequence[PluginRecord], vendors: Sequence[EpLibrary], console: Console
) -> None:
    """Print the EPs, and the vendors' packages that they require."""
    eps = [
        (
            record.name,
            record.origin,
            record.state.value,
            record.vendor or "-",
        )
        for record in records
    ]
    console.table(("plugin", "distribution", "state", "vendor"), eps)
    packages = _list_libraries_of_eps(vendors, records)
    console.table(
        ("library of an EP", "installed", "needed", "for", "usable"), packages
    )
    missing = [each.install for each in vendors if each.extra and not each.version]
    if missing:
        console.say("\nTo install what is missing, if you want those EPs:")
    for command in dict.fromkeys(missing):
        console.say(f"  {command}", wrap=False)


def _print_findings(findings: Sequence[DoctorFinding], console: Console) -> None:
    for finding in sorted(findings, key=lambda f: f.severity != "problem"):
        console.say(f"\n{finding.severity}: {finding.message}")
        if finding.hint:
            # A command stays on one line, to be copied.
            is_command = _INSTALL.match(finding.hint) is not None
            console.say(text.indent(finding.hint), wrap=not is_command)

    counts = Counter(finding.severity for finding in findings)
    summary = " and ".join(
        text.counted(counts[severity], severity)
        for severity in ("problem", "note")
        if counts[severity]
    )
    verdict = "not ok" if counts["problem"] else "ok"
    console.say(f"\n{verdict}: {summary or 'nothing to fix'}")


# -- the interpreter and its environment
# -----------------------------------------------------------


def _facts() -> dict[str, str]:
    implementation = platform.python_implementation()
    is_virtual = sys.prefix != sys.base_prefix
    kind = "virtual environment" if is_virtual else "no virtual environment"
    system = f"{platform.system()} {platform.release()}"
    folder = Path(epctx_core.__file__).parent
    return {
        "python": f"{implementation} {platform.python_version()}",
        "executable": sys.executable,
        "environment": f"{sys.prefix} ({kind})",
        "platform": f"{system} on {platform.machine()}",
        CORE: f"{epctx_core.__version__} in {folder}",
    }


def _check_environment() -> Iterator[DoctorFinding]:
    # The commonest reason why an installed plugin is not found.
    pip = shutil.which("pip")
    if pip is None or Path(pip).parent.resolve().is_relative_to(
        Path(sys.prefix).resolve()
    ):
        return
    if plugins := sorted(_plugins_under(Path(pip).parent.parent)):
        yield _problem(
            f"`pip` on the PATH ({pip}) installs into another environment, which has "
            f"plugins that are not installed here: {', '.join(plugins)}.",
            install_command(*plugins, pip=f"{sys.executable} -m pip"),
        )


def _plugins_under(prefix: Path) -> Iterator[str]:
    """Yield the distributions of another environment that provide EPs, as their
    metadata says.
    """
    search_path = {Path(entry).resolve() for entry in sys.path if entry}
    for folder in prefix.glob("lib/python*/*-packages"):
        if folder.resolve() not in search_path:
            for points in folder.glob("*.dist-info/entry_points.txt"):
                if EP_GROUP in points.read_text("utf-8", errors="replace"):
                    yield canonicalize_name(points.parent.name.partition("-")[0])


# -- libraries
# -------------------------------------------------------------------------------------


def check_libraries(requirements: Sequence[Library] | None) -> Iterator[DoctorFinding]:
    """Yield a finding for each library that is missing or too old, with the command
    that fixes it.
    """
    if requirements is None:
        yield _note(
            (
                "epctx-core is run from its source and is not installed; versions of "
                "libraries were not checked."
            ),
            install_command(CORE),
        )
        return
    for library in requirements:
        install = install_command(f"{library.name}{library.required}")
        if library.fits is False:
            yield _problem(
                f"{library.name} {library.version} is installed; {library.user} needs "
                f"{library.required}.",
                install,
            )
        # What nobody asked for is in the table alone.
        elif library.version is not None or (library.extra and library.user == CORE):
            continue
        elif not library.extra:
            yield _problem(
                f"{library.name}, which {library.user} needs, is not installed.",
                install,
            )
        elif library.name == ONNXRUNTIME and find_builds(ONNXRUNTIME):
            continue  # See `_check_builds`.
        elif is_importable(library.name):
            yield _note(
                f"{library.name} is provided by a distribution of another name; its "
                "version was not checked."
            )
        else:
            purpose = _PURPOSES.get(library.extra, library.extra)
            yield _note(
                f"{library.name} is not installed ({purpose}).",
                install_command(f"{CORE}[{library.extra}]"),
            )


def _check_builds(requirements: Sequence[Library] | None) -> Iterator[DoctorFinding]:
    """Yield a finding where several builds of onnxruntime are installed over one
    another, or the one that is there is older than epctx needs.
    """
    builds = {
        package.metadata["Name"]: package.version
        for package in find_builds(ONNXRUNTIME)
    }
    if len(builds) > 1:
        yield _problem(
            f"{' and '.join(builds)} are installed over one another: their files have "
            "the same names, and those of the one that came last are used.",
            f"pip uninstall {' '.join(builds)}, then pip install the one that you need",
        )
    needed = [lib.required for lib in requirements or () if lib.name == ONNXRUNTIME]
    for name, version in builds.items() if needed else ():
        if name != ONNXRUNTIME and not within(version, SpecifierSet(needed[0])):
            yield _note(
                f"{name} {version} is installed, and epctx is made for onnxruntime "
                f"{needed[0]}: this one runs models and its EPs, and optimises none "
                "for other EPs.",
                "Upgrade it; where there is no newer one, the vendor's plugin wheel "
                "runs beside a newer onnxruntime: `epctx docs install` has a table.",
            )


def _check_libraries_of_eps(
    requirements: Sequence[EpLibrary],
) -> Iterator[DoctorFinding]:
    """Yield a finding for each vendor's package that is missing or too old; what an
    extra would install is named below the table.
    """
    for library in requirements:
        if library.fits is False:
            message = (
                f"{library.name} {library.version} is installed; {library.label} "
                f"needs {library.required}."
            )
        elif library.version is None and not library.extra:
            message = f"{library.name}, which {library.label} needs, is not installed."
        else:
            continue
        yield _problem(message, library.install)


def _list_libraries_of_eps(
    vendors: Sequence[EpLibrary], records: Sequence[PluginRecord]
) -> list[tuple[str, ...]]:
    """Return a row for each vendor's package that an EP requires, and for each in which
    a finder found one.
    """
    rows = [(v.name, v.version, v.required, v.ep, v.user) for v in vendors]
    for record in records:
        package = canonicalize_name(record.distribution or "")
        if record.finder:
            rows.append((package, record.version, "-", record.name, package))
    return [
        (name, version or "-", required, ep, _usable_here(ep, user, records))
        for name, version, required, ep, user in rows
    ]


def _usable_here(ep: str, package: str, records: Sequence[PluginRecord]) -> str:
    """Return whether the EP of a package is available: "yes", "no", or the purposes
    that it is available for.
    """
    answers = {
        purpose.value: answer.available
        for record in records
        if record.name == ep and canonicalize_name(record.distribution or "") == package
        for purpose, answer in record.availability.items()
    }
    if answers and all(answers.values()):
        return "yes"
    purposes = [purpose for purpose, available in answers.items() if available]
    return ", ".join(purposes) or "no"


# -- plugins and commands
# --------------------------------------------------------------------------


def _plugins(console: Console) -> tuple[list[Trial], list[DoctorFinding]]:
    """Try every plugin; a variable that cannot be read keeps all of them from being
    found.
    """
    try:
        with console.progress("loading each plugin"):
            trials = try_all(default_registry.records(), log=console.debug)
    except InvalidArgument as error:
        return [], [_problem(error.message, error.hint or "")]
    return trials, [
        *_check_plugins(trials),
        *_check_duplicates([trial.record for trial in trials]),
        *_check_imports(trials),
        *_check_packages(trials),
    ]


def _check_plugins(trials: Sequence[Trial]) -> Iterator[DoctorFinding]:
    """Yield a finding for each plugin that cannot be used."""
    if not trials:
        yield _note(
            (
                "no plugin is installed: models run on the CPU EP, and nothing can be "
                "compiled."
            ),
            "Install one, or start one with `epctx plugins new`.",
        )
    for trial in trials:
        record = trial.record
        if finder := explain_finder(record):
            yield _note(finder)
        if record.usable and record.reason:
            hints = dict.fromkeys(
                each.hint for each in record.availability.values() if each.hint
            )
            yield _note(
                f"{record.label}: {record.reason.rstrip('.')}.", " ".join(hints)
            )
        elif not (record.usable or is_duplicate(record)):
            why, hint = default_registry.explain_unusable(record)
            harmless = record.state.value in {"disabled", "removed"}
            yield (_note if harmless else _problem)(f"{why}.", hint)


def _check_duplicates(records: Sequence[PluginRecord]) -> Iterator[DoctorFinding]:
    """Yield a finding for each EP that several distributions provide."""
    used = {record.name for record in records if record.usable}
    for label, group in group_by_reason(filter(is_duplicate, records)):
        example = min(group, key=lambda record: bool(record.simulated))
        if example.undecided and example.name not in used:
            why, hint = default_registry.explain_unusable(example)
            yield _problem(f"{why}.", hint)
        else:
            name = f'"{example.qualified_name}"'
            pronoun = "it" if len(group) == 1 else "one of them"
            yield _note(
                f"{label} is not used: {example.reason}.",
                f"To use {pronoun}, name it {name}.",
            )


def _check_imports(trials: Sequence[Trial]) -> Iterator[DoctorFinding]:
    """Yield a finding for each import of a plugin that is slow or has side effects."""
    for trial in trials:
        label = trial.record.label
        if trial.import_seconds >= SLOW_IMPORT:
            yield _note(
                f"{label} takes {trial.import_seconds:.1f} s to import.",
                "Its authors: import what only a session needs in the hook that needs "
                "it.",
            )
        if trial.threads:
            count = text.counted(len(trial.threads), "thread")
            yield _note(
                f"{label} leaves {count} running when it was only imported: "
                f"{', '.join(map(repr, trial.threads))}.",
                "Its authors: start threads in a session, and end them in `shutdown`.",
            )
        if output := trial.import_output.strip():
            yield _note(
                f"{label} writes to standard output or standard error when it is "
                f"imported: {one_line(output)[:_SHOWN]!r}.",
                "Its authors: log to `ProviderContext.logger`. `epctx doctor -v` shows "
                "all of it.",
            )


def _check_packages(trials: Sequence[Trial]) -> Iterator[DoctorFinding]:
    """Yield a finding for each installed package that requires epctx-core and provides
    nothing to it.

    Not for a library that another of them requires, nor for one that an extra of
    epctx-core installs.
    """
    requirements = _find_requirements()
    ours = {name for name, required in requirements.items() if CORE in required}

    providers = {trial.record.distribution for trial in trials}
    providers |= {command.package for command in OWN}
    entries = find_entries(*(kind.group for kind in KINDS))
    providers |= {package.metadata["Name"] for package, _ in entries}
    providing = {canonicalize_name(name) for name in providers if name}

    needed_by_others = {
        library for name in (*ours, CORE) for library in requirements.get(name, ())
    }
    for name in sorted(ours - providing - needed_by_others):
        yield _note(
            f"{name} needs epctx-core, but has no entry point of the group {EP_GROUP}.",
            (
                "This is right for a library. If it should provide an EP, add the "
                "entry point and install it again."
            ),
        )


def _find_requirements() -> dict[str, frozenset[str]]:
    """Return the names that each installed distribution requires, with or without an
    extra.
    """
    requirements: dict[str, frozenset[str]] = {}
    for package in distributions():
        with suppress(Exception):  # metadata of other packages fails in many ways
            matches = map(_NAME.match, package.requires or ())
            names = frozenset(canonicalize_name(m[1]) for m in matches if m)
            requirements.setdefault(canonicalize_name(package.metadata["Name"]), names)
    return requirements


def _check_commands() -> Iterator[DoctorFinding]:
    """Yield a finding for each command and engine of another package that cannot be
    used or is ambiguous.
    """
    names = {command.name for command in OWN}
    added = added_commands()
    owners: dict[tuple[str, str], list[str]] = {}
    for command in added:
        owners.setdefault(("command", command.name), []).append(
            f"{command.package} {command.version}"
        )
    for name, package in _engines():
        owners.setdefault(("engine", name), []).append(package)
    for (kind, name), packages in owners.items():
        if kind == "command" and name in names:
            yield _note(
                f"the command {name!r} of {packages[0]} is not used: epctx has one of "
                "that name."
            )
        elif len(packages) > 1:
            message = (
                f"the {kind} {name!r} is ambiguous: {' and '.join(packages)} have it."
            )
            yield _problem(message, "Uninstall all but one of them.")
    for command in added:
        if not command.can_be_typed:
            yield _problem(
                f"the command {command.name!r} of {command.package} {command.version} "
                "cannot be typed: a name has no space and does not begin with '-'.",
                f"Upgrade or uninstall {command.package}, or report it to its authors.",
            )


def _engines() -> list[tuple[str, str]]:
    """Return the names of the engines of packages, each with its distribution."""
    engines = [
        (entry.name, package.metadata["Name"])
        for package, entry in find_entries(ENGINE_GROUP)
    ]
    return list(dict.fromkeys(engines))


# -- environment variables
# -------------------------------------------------------------------------


def _check_variables(
    variables: Mapping[str, str], *, any_plugin: bool
) -> Iterator[DoctorFinding]:
    """Yield a finding for each unknown variable, and for each that names a missing
    plugin or engine.
    """
    for name in variables:
        if name not in VARIABLES:
            yield _problem(
                f"the environment variable {name} is "
                f"unknown.{suggestion(name, VARIABLES)}",
                f"Unset it, or use one of {', '.join(VARIABLES)}.",
            )
    engine = variables.get("EPCTX_ENGINE")
    engines = {"onnx.reference", *dict(_engines())}
    if engine and engine.rpartition(":")[2] not in engines:
        yield _problem(
            f"EPCTX_ENGINE names {engine!r}, an engine that is not "
            f"installed.{suggestion(engine, engines)}",
            "Correct the name, or unset the variable.",
        )
    for sentence in default_registry.misspelt() if any_plugin else ():
        yield _problem(f"{sentence}.", "Correct the name, or unset the variable.")
