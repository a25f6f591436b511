"""Results of commands about plugins and their environment: what `--json` prints; see
`results`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from epctx_core import Placement


@dataclass(frozen=True, kw_only=True)
class AvailabilityFacts:
    """Availability of an EP for a purpose.

    Attributes:
        available: true if it is available.
        reason: why not, or empty.
        hint: the way to have it, or empty.
    """

    available: bool
    reason: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class PluginFacts:
    """EP of an installed plugin.

    Attributes:
        name: the EP's name.
        sources: values of `source` of the nodes that it loads.
        distribution: package that provides it.
        version: version of that package.
        vendor: vendor of the EP; null before it was imported.
        simulated: true if it is simulated; null before it was imported.
        finder: finder of an EP whose package has no entry point of epctx.
        state: state of the plugin, see `epctx docs plugins`.
        reason: why it cannot be used, or empty.
        availability: availability by purpose: export, load and run.
    """

    name: str
    sources: list[str]
    distribution: str | None
    version: str | None
    vendor: str | None
    simulated: bool | None
    finder: str | None
    state: str
    reason: str
    availability: dict[str, AvailabilityFacts]


@dataclass(frozen=True, kw_only=True)
class EntryFacts:
    """Plugin of another kind than an EP.

    Attributes:
        name: name of its entry point.
        distribution: package that provides it.
        version: version of that package.
        entry_point: module and object.
    """

    name: str
    distribution: str
    version: str
    entry_point: str


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """EP that is not listed, because its package lacks an extra.

    Attributes:
        name: the EP's name.
        distribution: package that provides it.
        install: command that installs what it lacks.
    """

    name: str
    distribution: str
    install: str


@dataclass(frozen=True, kw_only=True)
class PluginsListResult:
    """Result of `epctx plugins list`.

    Attributes:
        plugins: EPs of installed plugins.
        left_out: EPs that are not listed, because their packages lack an extra.
        engines: installed engines.
        commands: installed commands of other packages.
        host_plugins: installed host plugins.
        model_formats: installed model formats.
        isolations: installed packages that run EPs out of process.
    """

    plugins: list[PluginFacts]
    left_out: list[LeftOut]
    engines: list[EntryFacts]
    commands: list[EntryFacts]
    host_plugins: list[EntryFacts]
    model_formats: list[EntryFacts]
    isolations: list[EntryFacts]


@dataclass(frozen=True, kw_only=True)
class OptionFacts:
    """Option of an EP.

    Attributes:
        name: its key.
        type: type of its value.
        default: its default; null for a secret.
        choices: values that it may have; empty for any.
        doc: its meaning.
        secret: true if its value never leaves the process.
    """

    name: str
    type: Literal["bool", "int", "float", "str"]
    default: Any
    choices: list[Any]
    doc: str
    secret: bool


@dataclass(frozen=True, kw_only=True)
class PluginDetails(PluginFacts):
    """EP of a plugin that was loaded. The keys from `api_version` to
    `weightless_modes` are left out if it could not be.

    Attributes:
        entry_point: module and class.
        traceback: traceback of the exception that it raised.
        api_version: version of the contract that it implements.
        binary_suffix: suffix of the names of its context binaries.
        options: its options.
        dynamic_options: options that may change while a session lives.
        hooks: hooks that it implements.
        class_methods: class methods that it overrides.
        keeps_functions: functions of models that it takes whole.
        weightless_modes: weightless modes that it has.
    """

    entry_point: str | None
    traceback: str | None
    api_version: int | None = None
    binary_suffix: str | None = None
    options: list[OptionFacts] | None = None
    dynamic_options: list[OptionFacts] | None = None
    hooks: list[str] | None = None
    class_methods: list[str] | None = None
    keeps_functions: list[str] | None = None
    weightless_modes: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class EntryDetails(EntryFacts):
    """Plugin of another kind that was loaded.

    Attributes:
        kind: kind of the plugin.
        state: broken if it could not be loaded.
        reason: why not, or empty.
        traceback: traceback of the exception that it raised, or empty.
        doc: first paragraph of its documentation.
        provides: name of the engine.
        summary: what the command does.
    """

    kind: str
    state: Literal["broken", "loaded"]
    reason: str
    traceback: str
    doc: str | None = None
    provides: str | None = None
    summary: str | None = None


@dataclass(frozen=True, kw_only=True)
class PluginsInfoResult:
    """Result of `epctx plugins info`.

    Attributes:
        plugins: EPs of the name.
        others: plugins of other kinds of the name.
    """

    plugins: list[PluginDetails]
    others: list[EntryDetails]


@dataclass(frozen=True, kw_only=True)
class PluginsNewResult:
    """Result of `epctx plugins new`.

    Attributes:
        folder: folder of the package.
        distribution: name of the package.
        module: name of its module.
        files: files that were written.
        ep: name of the EP.
    """

    folder: str
    distribution: str
    module: str
    files: list[str]
    ep: str


@dataclass(frozen=True, kw_only=True)
class LibraryFacts:
    """Library that epctx-core or a package needs or can use.

    Attributes:
        name: the required distribution.
        user: distribution that requires it.
        required: version specifier.
        extra: extra that installs it; null for one that is always needed.
        version: installed version.
        fits: true if the installed version is within the specifier.
    """

    name: str
    user: str
    required: str
    extra: str | None
    version: str | None
    fits: bool | None


@dataclass(frozen=True, kw_only=True)
class EpLibraryFacts(LibraryFacts):
    """Vendor's package that an EP needs.

    Attributes:
        ep: the EP's name.
    """

    ep: str


@dataclass(frozen=True, kw_only=True)
class DoctorFinding:
    """Finding of `epctx doctor`.

    Attributes:
        severity: a problem has to be fixed.
        message: what is wrong, or worth a note.
        hint: a fix, or empty.
    """

    severity: Literal["problem", "note"]
    message: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class DoctorResult:
    """Result of `epctx doctor`.

    Attributes:
        ok: true if there is no problem.
        environment: Python, platform and versions, by name.
        libraries: libraries that epctx-core needs or can use.
        libraries_of_eps: vendors' packages that EPs need.
        plugins: EPs of installed plugins, each loaded unless a model was named.
        variables: environment variables of epctx that are set.
        findings: problems and notes; with a model, about that alone.
        placement: EPs that would run the nodes of the model that was named.
    """

    ok: bool
    environment: dict[str, str]
    libraries: list[LibraryFacts]
    libraries_of_eps: list[EpLibraryFacts]
    plugins: list[PluginFacts]
    variables: dict[str, str]
    findings: list[DoctorFinding]
    placement: Placement | None = None
