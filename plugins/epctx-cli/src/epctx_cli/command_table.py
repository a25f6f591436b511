"""Table of epctx's own commands, and the commands that other packages add by entry
points.

A command is imported when it is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from epctx_cli.entry_points import COMMAND_GROUP
from epctx_cli.streams import UnwritableError
from epctx_core.errors import EpctxError, PluginError
from epctx_core.ext import import_installed

if TYPE_CHECKING:
    import argparse

    from importlib_metadata import IDistribution

    from epctx_cli.arguments import CommandParser


class Command(NamedTuple):
    """A command, not imported yet.

    Attributes:
        name: as it is typed; an action of a group has two words.
        summary: its line in `epctx --help`.
        target: the function that declares its arguments, as `module:function`; empty
            for a group of actions.
        package: the distribution that contains it.
        version: that of the distribution, for another package's command; None for
            epctx's own.
        group: the title above it in `epctx --help`; an action has that of its group.
    """

    name: str
    summary: str
    target: str = ""
    package: str = "epctx-cli"
    version: str | None = None
    group: str = "from other packages"

    @property
    def can_be_typed(self) -> bool:
        """True if a shell passes the name as one argument that is not an option."""
        return (
            bool(self.name)
            and self.name[0] != "-"
            and not any(map(str.isspace, self.name))
        )

    def declare(self, parser: CommandParser) -> None:
        """Import the command and have it declare its arguments.

        Raises:
            PackageMissing: the package of one of epctx's own commands is not installed.
            PluginError: another package's command is broken.
        """
        if not self.target:
            actions = [
                command for command in OWN if command.name.startswith(f"{self.name} ")
            ]
            add_commands(
                parser, actions, title="actions", metavar="ACTION", required=True
            )
        elif self.version is None:
            module, _, function = self.target.partition(":")
            getattr(
                import_installed(module, needed_by=f"`epctx {self.name}`"), function
            )(parser)
        else:
            from importlib_metadata import EntryPoint

            try:
                EntryPoint(self.name, self.target, COMMAND_GROUP).load()(parser)
            except (Exception, SystemExit) as error:
                raise self.broken("cannot be loaded", error) from error

    @contextmanager
    def blame(self) -> Iterator[None]:
        """Attribute untyped errors to the package, unless the command is epctx's own.

        Raises:
            PluginError: another package's command raised an untyped error.
        """
        try:
            yield
        except (EpctxError, UnwritableError, MemoryError):
            raise
        except Exception as error:
            if self.version is None:
                raise
            raise self.broken("failed", error) from error

    def broken(self, how: str, error: BaseException) -> PluginError:
        """Return the error for another package's command."""
        cause = f"{type(error).__name__}: {error}".rstrip(": ")
        return PluginError(
            f"the command {self.name!r} of {self.package} {self.version} {how}: "
            f"{cause}.",
            distribution=self.package,
            version=self.version,
            hint=f"Upgrade or uninstall {self.package}; all other commands work.",
        )


def add_commands(
    parser: CommandParser, commands: Iterable[Command], **options: Any
) -> None:
    """Make the next argument of a parser choose a command.

    Args:
        parser: of `epctx`, or of a group.
        commands: the choices; none is imported.
        options: as for `add_subparsers`.
    """
    choices = parser.add_subparsers(**options)
    groups: dict[str, argparse._ArgumentGroup] = {}
    for command in commands:
        added = choices.add_parser(
            command.name.rpartition(" ")[2],
            help=command.summary,
            description=f"{command.summary[0].upper()}{command.summary[1:]}.",
        )
        added.declare = command.declare
        added.blame = command.blame
        if " " in command.name:
            continue
        # argparse lists all choices below one title.
        if command.group not in groups:
            groups[command.group] = parser.add_argument_group(command.group)
        line = choices._choices_actions.pop()  # noqa: SLF001
        groups[command.group]._group_actions.append(line)  # noqa: SLF001


_GROUPS = {
    "compile and run": (
        Command(
            "compile",
            "compile a model into a context model",
            "epctx_cli.commands.compile:add_compile_arguments",
        ),
        Command(
            "share",
            "compile several models that share weights, with one binary",
            "epctx_cli.commands.compile:add_share_arguments",
        ),
        Command(
            "run",
            "run a model, plain or compiled, and describe its outputs",
            "epctx_cli.commands.run:add_run_arguments",
        ),
        Command(
            "bench",
            "measure how long compiling, loading and running models take",
            "epctx_bench.command:add_arguments",
        ),
        Command(
            "gate",
            "compare a model with a baseline: may it ship?",
            "epctx_cli.commands.gate:add_arguments",
        ),
        Command(
            "batch",
            "compile many models for many targets, as a file lists them",
            "epctx_batch.command:add_arguments",
        ),
    ),
    "look at models": (
        Command(
            "inspect",
            "show what is in a model or a vendor's binary; load nothing",
            "epctx_cli.commands.inspect:add_inspect_arguments",
        ),
        Command(
            "explain",
            "show which EP would take each node, and why others refuse it",
            "epctx_cli.commands.inspect:add_explain_arguments",
        ),
        Command(
            "verify",
            "check a context model and its payloads without a device",
            "epctx_cli.commands.inspect:add_verify_arguments",
        ),
        Command(
            "compare",
            "run two models on the same inputs and show where they differ",
            "epctx_cli.commands.run:add_compare_arguments",
        ),
        Command(
            "diff",
            "show in which nodes, weights, payloads and EPs models differ",
            "epctx_files.commands:add_diff_arguments",
        ),
        Command(
            "report",
            "write a page: how a model is cut, and what is worth a look",
            "epctx_report.command:add_arguments",
        ),
    ),
    "files": (
        Command(
            "seal",
            "give digests to a context model that another tool wrote",
            "epctx_files.commands:add_seal_arguments",
        ),
        Command(
            "wrap",
            "write a context model that loads a vendor's binary",
            "epctx_native_formats.commands:add_wrap_arguments",
        ),
        Command(
            "convert",
            "convert a model to ONNX Runtime's format (.ort), or back",
            "epctx_cli.commands.convert:add_arguments",
        ),
        Command(
            "merge",
            "make one model of several, where one goes on from another",
            "epctx_files.commands:add_merge_arguments",
        ),
        Command(
            "extract",
            "write a part of a model as a model, such as an EPContext node",
            "epctx_files.commands:add_extract_arguments",
        ),
        Command(
            "embed",
            "put context binaries and external weights into the model",
            "epctx_files.commands:add_embed_arguments",
        ),
        Command(
            "externalize",
            "put payloads and weights of a model into files beside it",
            "epctx_files.commands:add_externalize_arguments",
        ),
    ),
    "caches": (
        Command("cache", "list, count, check and clear what load_or_compile keeps"),
        Command(
            "cache ls",
            "list the entries, the last used one first",
            "epctx_cache.command:add_ls_arguments",
        ),
        Command(
            "cache stats",
            "show hits, misses, and the time saved against compiling again, by EP",
            "epctx_cache.command:add_stats_arguments",
        ),
        Command(
            "cache lookup",
            "print the path of a model's entry; exit with 1 if there is none",
            "epctx_cache.command:add_lookup_arguments",
        ),
        Command(
            "cache why",
            "show why a model is not in the cache: how the nearest entry's key differs",
            "epctx_cache.command:add_why_arguments",
        ),
        Command(
            "cache verify",
            "check every byte of all entries; remove damaged ones",
            "epctx_cache.command:add_verify_arguments",
        ),
        Command(
            "cache gc",
            "remove the entries used longest ago until the others fit the limit",
            "epctx_cache.command:add_gc_arguments",
        ),
        Command(
            "cache clear",
            "remove all entries",
            "epctx_cache.command:add_clear_arguments",
        ),
    ),
    "plugins and environment": (
        Command("plugins", "list, describe and check plugins, or start a new one"),
        Command(
            "plugins list",
            "list the installed plugins",
            "epctx_cli.commands.plugins:add_list_arguments",
        ),
        Command(
            "plugins info",
            "describe one plugin",
            "epctx_cli.commands.plugins:add_info_arguments",
        ),
        Command(
            "plugins check",
            "run the conformance kit against one plugin",
            "epctx_conformance.command:add_arguments",
        ),
        Command(
            "plugins new",
            "start a new plugin",
            "epctx_cli.commands.plugins:add_new_arguments",
        ),
        Command(
            "doctor",
            "check environment and plugins, or where a model would run",
            "epctx_cli.commands.doctor:add_arguments",
        ),
    ),
    "documentation and shell": (
        Command(
            "docs",
            "list the pages of the documentation, or print one",
            "epctx_cli.commands.docs:add_arguments",
        ),
        Command(
            "schema",
            "print the JSON Schema of what a command prints with --json",
            "epctx_cli.commands.schema:add_arguments",
        ),
        Command(
            "completion",
            "print a script that completes commands and options in a shell",
            "epctx_cli.commands.completion:add_arguments",
        ),
    ),
}
OWN = tuple(
    command._replace(
        group=group,
        package=command.target.partition(".")[0].replace("_", "-") or command.package,
    )
    for group, commands in _GROUPS.items()
    for command in commands
)
"""epctx's own commands, in the order of `epctx --help`."""


def added_commands() -> list[Command]:
    """Return the commands that installed packages add, by name and package; import none
    of them.

    Those with the name of one of epctx's own are included, though they are never used.
    """
    from importlib_metadata import distributions

    commands = [
        command
        for distribution in distributions()
        for command in _commands_of(distribution)
    ]
    # Of a distribution that is found twice, Python imports the first on sys.path.
    return sorted({(c.name, c.package): c for c in reversed(commands)}.values())


def _commands_of(distribution: IDistribution) -> Iterator[Command]:
    try:
        if COMMAND_GROUP not in (distribution.read_text("entry_points.txt") or ""):
            return
        package = distribution.metadata["Name"]
        version = distribution.version
        entries = distribution.entry_points.select(group=COMMAND_GROUP)
    except Exception:  # noqa: BLE001 - metadata of other packages fails in many ways
        return
    for entry in entries:
        yield Command(
            entry.name, f"from {package} {version}", entry.value, package, version
        )
