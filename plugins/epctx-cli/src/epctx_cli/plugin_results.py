"""Results of commands about plugins and their environment: what `--json` prints; see
`results`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_core import Placement, PluginRecord


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
        native_formats: installed readers of vendors' binaries.
    """

    plugins: Sequence[PluginRecord]
    left_out: list[LeftOut]
    engines: list[EntryFacts]
    commands: list[EntryFacts]
    host_plugins: list[EntryFacts]
    model_formats: list[EntryFacts]
    isolations: list[EntryFacts]
    native_formats: list[EntryFacts]


@dataclass(frozen=True, kw_only=True)
class EntryDetails(EntryFacts):
    """Plugin of another kind that was loaded.

    Attributes:
        kind: kind of the plugin.
        state: broken if it could not be loaded.
        reason: reason why it could not be loaded, or empty.
        traceback: traceback of the exception that it raised, or empty.
        doc: first paragraph of its documentation.
        provides: name of the engine.
        summary: summary of the command.
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

    plugins: list[dict[str, Any]]
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
class Library:
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
class EpLibrary(Library):
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
        message: description of the problem, or a note.
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
    libraries: Sequence[Library]
    libraries_of_eps: Sequence[EpLibrary]
    plugins: Sequence[PluginRecord]
    variables: dict[str, str]
    findings: list[DoctorFinding]
    placement: Placement | None = None
