"""`epctx doctor`: check the environment, libraries, plugins, commands and variables; or
say where a model would run.

Each check is a function of what was found, and yields findings.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

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
from epctx_cli.command_table import OWN, Command
from epctx_cli.entry_points import (
    COMMAND_GROUP,
    ENGINE_GROUP,
    EP_GROUP,
    explain_finder,
    group_by_reason,
    is_duplicate,
)
from epctx_cli.exit_codes import ExitCode
from epctx_cli.libraries import (
    CORE,
    Libraries,
    Package,
    find_builds,
    find_libraries,
    find_packages,
    is_importable,
    list_idle,
    list_owners,
    within,
)
from epctx_cli.plugin_results import (
    DoctorFinding,
    DoctorResult,
    EpLibrary,
    Library,
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
    from epctx_cli.text import Cell
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


def _problem(message: str, hint: str = "") -> DoctorFinding:
    return DoctorFinding(severity="problem", message=_end(message), hint=hint)


def _note(message: str, hint: str = "") -> DoctorFinding:
    return DoctorFinding(severity="note", message=_end(message), hint=hint)


def _end(message: str) -> str:
    """Return a message that ends in one full stop; a reason in it may have its own."""
    return re.sub(r"\.+$", ".", message)


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


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Environment as it was found, for the checks.

    Attributes:
        packages: packages for epctx, by name.
        libraries: libraries that those require.
        builds: versions of the installed builds of onnxruntime, by name.
        variables: variables of epctx that are set.
        trials: a trial of each plugin.
        fault: error of a variable that kept plugins from being found.
    """

    packages: Mapping[str, Package]
    libraries: Libraries
    builds: Mapping[str, str]
    variables: Mapping[str, str]
    trials: Sequence[Trial]
    fault: InvalidArgument | None

    @property
    def records(self) -> list[PluginRecord]:
        """Record of each plugin after its trial."""
        return [trial.record for trial in self.trials]


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Check everything, or one model; 1 if something has to be fixed."""
    facts = _describe_environment()
    variables = {
        name: os.environ[name] for name in sorted(os.environ) if name.startswith(PREFIX)
    }
    packages = find_packages()
    libraries = find_libraries(packages)
    placement = None
    if arguments.model is None:
        _require_model(arguments)
        trials, fault = _try_plugins(console)
        environment = Environment(
            packages=packages,
            libraries=libraries,
            builds=find_builds(ONNXRUNTIME),
            variables=variables,
            trials=trials,
            fault=fault,
        )
        findings = [*chain.from_iterable(check(environment) for check in CHECKS)]
        records = environment.records
        console.table(("", ""), list(facts.items()))
        _print_tables(environment, console)
    else:
        inquiry = _ask_eps(arguments, console)
        records = default_registry.records()
        findings = [*chain.from_iterable(check(inquiry) for check in CHECKS_OF_MODEL)]
        placement = inquiry.placement
        console.say(str(inquiry.placement), wrap=False)
        console.note_simulated(
            row["ep"]
            for row in inquiry.placement.eps
            if row["simulated"] and row["nodes"]
        )

    _print_findings(findings, console)
    ok = _is_ok(findings)
    console.result(
        DoctorResult(
            ok=ok,
            environment=facts,
            libraries=libraries.core,
            libraries_of_eps=libraries.eps,
            plugins=records,
            variables=variables,
            findings=findings,
            placement=placement,
        )
    )
    return ExitCode.DONE if ok else ExitCode.FAILED


def _describe_environment() -> dict[str, str]:
    is_virtual = sys.prefix != sys.base_prefix
    kind = "virtual environment" if is_virtual else "no virtual environment"
    system = f"{platform.system()} {platform.release()}"
    folder = Path(epctx_core.__file__).parent
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "environment": f"{sys.prefix} ({kind})",
        "platform": f"{system} on {platform.machine()}",
        CORE: f"{epctx_core.__version__} in {folder}",
    }


def _try_plugins(console: Console) -> tuple[list[Trial], InvalidArgument | None]:
    """Try every plugin; a variable that cannot be read keeps all of them from being
    found.
    """
    try:
        with console.progress("loading each plugin"):
            return try_all(default_registry.records(), log=console.debug), None
    except InvalidArgument as error:
        return [], error


def _print_tables(environment: Environment, console: Console) -> None:
    """Print libraries, plugins and variables; at last the commands that install what
    EPs lack.
    """
    libraries = environment.libraries
    builds = " and ".join(" ".join(build) for build in environment.builds.items())
    rows: list[tuple[Cell, ...]] = [
        (
            each.name,
            each.version or (each.name == ONNXRUNTIME and builds) or "-",
            each.required,
            _get_ep(each) or each.extra or "everything",
        )
        for each in (*libraries.core, *libraries.eps)
    ]
    console.table(("library", "installed", "needed", "for"), rows)

    rows = [
        (
            record.name,
            record.origin,
            record.state.value,
            _list_purposes(record),
            record.vendor or "-",
        )
        for record in environment.records
    ]
    console.table(("plugin", "distribution", "state", "usable", "vendor"), rows)

    rows = [
        (name, value, VARIABLES.get(name, "nothing"))
        for name, value in environment.variables.items()
    ]
    console.table(("variable", "value", "meaning"), rows)

    missing = [_install(each) for each in libraries.eps if _is_optional(each)]
    if missing:
        console.say("\nTo install what is missing, if you want those EPs:")
    for command in dict.fromkeys(missing):
        console.say(f"  {command}", wrap=False)


def _list_purposes(record: PluginRecord) -> str:
    """Return whether an EP is available: "yes", "no", or the purposes that it is
    available for.
    """
    answers = record.availability.items()
    purposes = [purpose.value for purpose, answer in answers if answer.available]
    if len(purposes) == len(answers) > 0:
        return "yes"
    return ", ".join(purposes) or "no"


def _print_findings(findings: Sequence[DoctorFinding], console: Console) -> None:
    """Print problems, then notes, and at last the verdict."""
    counts: list[str] = []
    for severity in ("problem", "note"):
        those = [finding for finding in findings if finding.severity == severity]
        for finding in those:
            # The text of an exception may have line breaks.
            console.say(f"\n{severity}: {one_line(finding.message)}")
            if finding.hint:
                # A command stays on one line, to be copied.
                is_command = finding.hint.startswith(
                    ("pip install ", f"{sys.executable} -m")
                )
                console.say(text.indent(finding.hint), wrap=not is_command)
        if those:
            counts.append(text.counted(len(those), severity))

    verdict = "ok" if _is_ok(findings) else "not ok"
    console.say(f"\n{verdict}: {' and '.join(counts) or 'nothing to fix'}")


def _is_ok(findings: Sequence[DoctorFinding]) -> bool:
    return all(finding.severity != "problem" for finding in findings)


# -- the interpreter, libraries and variables
# -----------------------------------------------------------


def check_pip(environment: Environment) -> Iterator[DoctorFinding]:
    """Yield a problem if `pip` is that of another environment, which has plugins: the
    commonest reason why an installed one is not found.
    """
    pip = shutil.which("pip")
    if pip is None or Path(pip).parent.resolve().is_relative_to(
        Path(sys.prefix).resolve()
    ):
        return
    there = set(_find_plugins_under(Path(pip).parent.parent))
    # That environment may be on the search path of this one.
    if plugins := sorted(there.difference(environment.packages)):
        yield _problem(
            f"`pip` on the PATH ({pip}) installs into another environment, which has "
            f"plugins that are not installed here: {', '.join(plugins)}.",
            install_command(*plugins, pip=f"{sys.executable} -m pip"),
        )


def _find_plugins_under(prefix: Path) -> Iterator[str]:
    """Yield the distributions of an environment that provide EPs, as their metadata
    says.
    """
    for points in prefix.glob("lib/python*/*-packages/*.dist-info/entry_points.txt"):
        if EP_GROUP in points.read_text("utf-8", errors="replace"):
            yield canonicalize_name(points.parent.name.partition("-")[0])


def check_libraries(environment: Environment) -> Iterator[DoctorFinding]:
    """Yield a finding for each library that is missing or too old, with the command
    that fixes it.
    """
    core, eps, others = environment.libraries
    if not core:
        yield _note(
            (
                "epctx-core is run from its source and is not installed; versions of "
                "libraries were not checked."
            ),
            install_command(CORE),
        )
    for library in (*core, *eps, *others):
        yield from check_library(library, environment.builds)


def check_library(
    library: Library, builds: Container[str] = ()
) -> Iterator[DoctorFinding]:
    """Yield a finding if a library is missing or too old.

    Args:
        library: what is known of it.
        builds: those of onnxruntime, which have a check of their own.
    """
    name = library.name
    ep = _get_ep(library)
    user = f"{ep} of {library.user}" if ep else library.user
    if library.fits is False:
        yield _problem(
            f"{name} {library.version} is installed; {user} needs {library.required}.",
            _install(library),
        )
    # What nobody asked for is in the table alone.
    elif library.version is not None or _is_optional(library):
        return
    elif is_importable(name):
        if not (name == ONNXRUNTIME and builds):
            yield _note(
                f"{name} is provided by a distribution of another name; its version "
                "was not checked."
            )
    elif library.extra and not ep:
        purpose = _PURPOSES.get(library.extra, library.extra)
        yield _note(f"{name} is not installed ({purpose}).", _install(library))
    else:
        yield _problem(
            f"{name}, which {user} needs, is not installed.", _install(library)
        )


def _get_ep(library: Library) -> str:
    """Return the EP that needs a library; empty for any other user."""
    return library.ep if isinstance(library, EpLibrary) else ""


def _is_optional(library: Library) -> bool:
    """Return whether a library is missing that only an extra would install."""
    is_asked_for = library.user != CORE and not _get_ep(library)
    return library.version is None and bool(library.extra) and not is_asked_for


def _install(library: Library) -> str:
    """Return the command that installs a library, by an extra if it belongs to one."""
    if library.extra and _get_ep(library):
        return install_command(f"{library.user}[{library.extra}]")
    if library.extra and library.version is None:
        return install_command(f"{CORE}[{library.extra}]")
    return install_command(f"{library.name}{library.required}")


def check_builds(environment: Environment) -> Iterator[DoctorFinding]:
    """Yield a finding where several builds of onnxruntime are installed over one
    another, or the one that is there is older than epctx needs.
    """
    builds = environment.builds
    if len(builds) > 1:
        yield _problem(
            f"{' and '.join(builds)} are installed over one another: their files have "
            "the same names, and those of the one that came last are used.",
            f"pip uninstall {' '.join(builds)}, then pip install the one that you need",
        )
    needed = [
        library.required
        for library in environment.libraries.core
        if library.name == ONNXRUNTIME
    ]
    for name, version in builds.items() if needed else ():
        if name != ONNXRUNTIME and not within(version, SpecifierSet(needed[0])):
            yield _note(
                f"{name} {version} is installed, and epctx is made for onnxruntime "
                f"{needed[0]}: this one runs models and its EPs, and optimises none "
                "for other EPs.",
                "Upgrade it; where there is no newer one, the vendor's plugin wheel "
                "runs beside a newer onnxruntime: `epctx docs install` has a table.",
            )


def check_variables(environment: Environment) -> Iterator[DoctorFinding]:
    """Yield a problem for each unknown variable, and for each that names a missing
    plugin or engine.
    """
    variables = environment.variables
    for name in variables:
        if name not in VARIABLES:
            yield _problem(
                f"the environment variable {name} is "
                f"unknown.{suggestion(name, VARIABLES)}",
                f"Unset it, or use one of {', '.join(VARIABLES)}.",
            )
    remedy = "Correct the name, or unset the variable."
    engine = variables.get("EPCTX_ENGINE", "")
    engines = {"", "onnx.reference", *list_owners(environment.packages, ENGINE_GROUP)}
    if engine.rpartition(":")[2] not in engines:
        yield _problem(
            f"EPCTX_ENGINE names {engine!r}, an engine that is not "
            f"installed.{suggestion(engine, engines)}",
            remedy,
        )
    for sentence in default_registry.misspelt() if environment.trials else ():
        yield _problem(f"{sentence}.", remedy)


# -- plugins
# ------------------------------------------------------------------------------------


def check_plugins(environment: Environment) -> Iterator[DoctorFinding]:
    """Yield a finding for each EP that cannot be used, or that several distributions
    provide.
    """
    fault = environment.fault
    records = environment.records
    if fault is not None:
        yield _problem(fault.message, fault.hint or "")
    elif not records:
        yield _note(
            (
                "no plugin is installed: models run on the CPU EP, and nothing can be "
                "compiled."
            ),
            "Install one, or start one with `epctx plugins new`.",
        )
    yield from map(_note, filter(None, map(explain_finder, records)))
    used = {record.name for record in records if record.usable}
    for label, group in group_by_reason(records):
        example = min(group, key=lambda record: bool(record.simulated))
        if example.usable:
            answers = example.availability.values()
            hints = dict.fromkeys(answer.hint for answer in answers if answer.hint)
            yield _note(f"{label}: {example.reason}.", " ".join(hints))
        elif is_duplicate(example) and not (
            example.undecided and example.name not in used
        ):
            pronoun = "it" if len(group) == 1 else "one of them"
            yield _note(
                f"{label} is not used: {example.reason}.",
                f'To use {pronoun}, name it "{example.qualified_name}".',
            )
        else:
            why, hint = default_registry.explain_unusable(example)
            harmless = example.state.value in {"disabled", "removed"}
            yield (_note if harmless else _problem)(f"{why}.", hint)


def check_imports(environment: Environment) -> Iterator[DoctorFinding]:
    """Yield a note for each import of a plugin that is slow or has side effects."""
    for trial in environment.trials:
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


def check_packages(environment: Environment) -> Iterator[DoctorFinding]:
    """Yield a note for each package that requires epctx-core and provides nothing."""
    for name in list_idle(environment.packages):
        yield _note(
            f"{name} needs epctx-core, but has no entry point of the group {EP_GROUP}.",
            (
                "This is right for a library. If it should provide an EP, add the "
                "entry point and install it again."
            ),
        )


def check_commands(environment: Environment) -> Iterator[DoctorFinding]:
    """Yield a finding for each command and engine of another package that cannot be
    used or is ambiguous.
    """
    own = {command.name for command in OWN}
    for kind, group in (("command", COMMAND_GROUP), ("engine", ENGINE_GROUP)):
        for name, owners in list_owners(environment.packages, group).items():
            origins = " and ".join(owners)
            subject = f"the {kind} {name!r} of {origins}"
            if group == COMMAND_GROUP and name in own:
                yield _note(f"{subject} is not used: epctx has one of that name.")
            elif len(owners) > 1:
                yield _problem(
                    f"the {kind} {name!r} is ambiguous: {origins} have it.",
                    "Uninstall all but one of them.",
                )
            if group == COMMAND_GROUP and not Command(name, "").can_be_typed:
                yield _problem(
                    f"{subject} cannot be typed: a name has no space and does not "
                    "begin with '-'.",
                    f"Upgrade or uninstall {origins}, or report it to its authors.",
                )


CHECKS = (
    check_pip,
    check_libraries,
    check_builds,
    check_variables,
    check_plugins,
    check_imports,
    check_packages,
    check_commands,
)


# -- one model
# ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Inquiry:
    """Inquiry about a model, with the answer of the EPs.

    Attributes:
        model: path of the model.
        eps: EPs that were named; empty if all that are usable were asked.
        session: options for the EPs.
        placement: nodes by EP.
    """

    model: str
    eps: Sequence[str]
    session: SessionOptions
    placement: Placement


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


def _ask_eps(arguments: argparse.Namespace, console: Console) -> Inquiry:
    """Ask the EPs for their claims, as a session would; nothing is compiled."""
    from epctx_core import explain_model
    from epctx_core.plugin import Purpose

    model, eps = arguments.model, arguments.ep
    session = session_options(arguments, console)
    if not eps:
        for name in _list_usable():
            session.add_provider(name, optional=True)
    with console.progress("asking the EPs") as progress:
        progress.watch(session)
        placement = explain_model(model, session, purpose=Purpose.RUN).placement
    return Inquiry(model=model, eps=eps, session=session, placement=placement)


def _list_usable() -> list[str]:
    """Return the usable EPs, simulated ones last; each is loaded to learn which."""
    simulated: dict[str, str] = {}
    for ep in get_available_providers():
        with suppress(EpctxError):
            simulated[ep] = get_ep_metadata(ep)["simulated"]
    return sorted(simulated, key=simulated.__getitem__)


def check_payloads(inquiry: Inquiry) -> Iterator[DoctorFinding]:
    """Yield problems for each payload that a simulated EP would get and does not read,
    as it is a vendor's own; one has the line to install the vendor's.
    """
    if not any(
        row["simulated"] and "com.microsoft::EPContext" in row["operators"]
        for row in inquiry.placement.eps
    ):
        return
    for finding in verify_model(inquiry.model, inquiry.session).findings:
        # An EP that has no check knows no remedy.
        if finding.hint and finding.code in {"container-not-checked", "not-checked"}:
            yield _problem(finding.message, finding.hint)


def check_placement(inquiry: Inquiry) -> Iterator[DoctorFinding]:
    """Yield a problem for each EP that was named and gets no node, with its first
    reason.
    """
    for row in inquiry.placement.eps if inquiry.eps else ():
        if row["ep"] != CPU_EP and not row["nodes"]:
            reasons = [
                each for each in inquiry.placement.left if each["ep"] == row["ep"]
            ]
            why = f" It says: {reasons[0]['reason']}." if reasons else ""
            yield _problem(
                f"{row['ep']} takes no node of {Path(inquiry.model).name}.{why}"
            )


def check_not_asked(inquiry: Inquiry) -> Iterator[DoctorFinding]:
    """Yield a problem for each EP that could not be asked, as it does not load or
    several distributions provide it; none if EPs were named.
    """
    records = () if inquiry.eps else default_registry.records()
    unusable = [r for r in records if r.undecided or r.state.value == "broken"]
    # Of several distributions the reason is one.
    explained = dict(map(default_registry.explain_unusable, unusable))
    for why, hint in explained.items():
        yield _problem(f"{why}.", hint)


CHECKS_OF_MODEL = (check_payloads, check_placement, check_not_asked)
