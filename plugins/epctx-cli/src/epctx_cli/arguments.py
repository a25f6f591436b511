"""Arguments that several commands share, and their conversion to session options.

Knows no command.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from epctx_cli import streams
from epctx_core.errors import (
    EpctxError,
    InvalidArgument,
    NotImplementedByProvider,
    suggestion,
)

if TYPE_CHECKING:
    from epctx_cli.console import Console
    from epctx_core import SessionOptions

CPU_EP = "CPUExecutionProvider"
_SUFFIX = "executionprovider"
_OPTION_OF_EP = "EP.KEY=VALUE"


class Words(NamedTuple):
    """Words that may follow a command.

    Attributes:
        commands: names of commands, and choices of arguments.
        options: the long ones.
        values: words that may follow each option with a value, by all its names; none
            where files do.
    """

    commands: tuple[str, ...]
    options: tuple[str, ...]
    values: dict[str, tuple[str, ...]]


class CommandParser(argparse.ArgumentParser):
    """Parser that raises typed errors.

    Options cannot be abbreviated, so that new ones break no script.

    Attributes:
        declare: imports the command and declares its arguments; None for `epctx`
            itself.
        blame: attributes untyped errors to the command's package.
        list_among_options: name of a list of positional arguments that may continue
            behind an option.
        list_further: gives words for positional arguments without choices, by the
            words before them; only shell completion calls it.
    """

    declare: Callable[[CommandParser], None] | None = None
    blame: Callable[[], AbstractContextManager[None]] = nullcontext
    list_among_options: str | None = None
    list_further: Callable[[], Mapping[tuple[str, ...], Iterable[str]]] | None = None

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})  # type: ignore[arg-type]

    def list_words(self, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Words]:
        """Return the words that may follow this command and each one below it, by the
        names of commands that lead there.

        A command that cannot be imported has no options.
        """
        if self.declare is not None:
            with suppress(EpctxError):
                self.declare(self)
        options = [
            name
            for action in self._actions
            for name in action.option_strings
            if name.startswith("--")
        ]
        commands: list[str] = []
        parsers: dict[str, CommandParser] = {}
        values: dict[str, tuple[str, ...]] = {}
        for action in self._actions:
            words = _list_values(action)
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - argparse has no public name for it
                parsers |= action.choices
            if not action.option_strings:
                commands += words
            elif action.nargs != 0:
                values |= dict.fromkeys(action.option_strings, words)

        further = self.list_further() if self.list_further is not None else {}
        words_by_path = {
            (*path, *before): Words(tuple(words), tuple(options), values)
            for before, words in {(): commands, **further}.items()
        }
        for name, parser in parsers.items():
            words_by_path |= parser.list_words((*path, name))
        return words_by_path

    def add_flag(self, name: str, meaning: str) -> None:
        """Declare an option without a value, False by default."""
        self.add_argument(name, action="store_true", help=meaning)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Declare the command's arguments, then parse; `parser` of the result is the
        parser itself.
        """
        if self.declare is None:
            return super().parse_known_args(args, namespace)
        if self.get_default("parser") is None:
            self.set_defaults(parser=self)
            self.declare(self)
        with self.blame():
            return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise InvalidArgument with argparse's message."""
        end = "" if message.endswith(("?", ".")) else "."
        raise InvalidArgument(f"{message}{end}", hint=f"See {self.prog} --help.")

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse ignores a failure to write the help.
        streams.send(file, message)

    def take_rest(self, arguments: argparse.Namespace, extras: Sequence[str]) -> None:
        """Append arguments that argparse left over to `list_among_options`.

        Raises:
            InvalidArgument: there is no such list, or an argument cannot be part of it.
        """
        if self.list_among_options is not None:
            wrong = next(
                (
                    n
                    for n, extra in enumerate(extras)
                    if extra.startswith("-") or "=" in extra
                ),
                len(extras),
            )
            getattr(arguments, self.list_among_options).extend(extras[:wrong])
            extras = extras[wrong:]
        if extras:
            self.refuse_unknown(extras)

    def refuse_unknown(self, extras: Sequence[str]) -> NoReturn:
        """Raise InvalidArgument for an unknown argument, with the closest option."""
        first = extras[0].partition("=")[0]
        options = [name for action in self._actions for name in action.option_strings]
        if first.startswith("-"):
            correction = suggestion(first, options)
            end = "." if correction else ""
            self.error(f"unknown option {first!r}{end}{correction}")
        if "=" in extras[0]:
            self.error(
                f"{first + '=…'!r} needs an option: write -c, -p or --free-dimension "
                "before each KEY=VALUE"
            )
        self.error(f"unexpected argument {extras[0]!r}")


def _list_values(action: argparse.Action) -> tuple[str, ...]:
    """Return the values that an argument may have, as far as they are known."""
    if action.choices is not None:
        return tuple(map(str, action.choices))
    # A column of `epctx bench` takes EP[+EP…].
    form = str(action.metavar).partition("[")[0]
    if form in {"EP", _OPTION_OF_EP}:
        from epctx_core import get_available_providers

        names = get_available_providers()
        end = "." if form == _OPTION_OF_EP else ""
        return tuple(f"{name.removesuffix('ExecutionProvider')}{end}" for name in names)
    return ()


def add_common(parser: CommandParser) -> None:
    """Add `--json`, `-v`, `-q` and `--traceback`."""
    parser.add_flag("--json", "print one JSON object instead of the report")
    add_verbosity(parser, default=argparse.SUPPRESS)


def add_allow_uncompiled(parser: CommandParser) -> None:
    """Add `--allow-uncompiled`."""
    meaning = (
        "exit with 0 even if nothing of a model was compiled and a plain model was "
        "written"
    )
    parser.add_flag("--allow-uncompiled", meaning)


def add_timeout(parser: CommandParser) -> None:
    """Add `--timeout`, another form of a session option."""
    parser.add_argument(
        "--timeout",
        dest="config",
        action="append",
        type="ep.compile_timeout={}".format,
        default=[],
        metavar="SECONDS",
        help=(
            "how long each EP may work on the compile of a model, in whole seconds, "
            "before its process is ended (default: no limit); as -c ep.compile_timeout"
        ),
    )


def add_verbosity(parser: argparse.ArgumentParser, *, default: object) -> None:
    """Add `-v`, `-q` and `--traceback`, which may stand before or after the command's
    name.
    """
    more = "print more details, and the traceback of an error"
    less = "print nothing but errors, and what --json asks for"
    trace = "print the traceback of an error"
    for names, meaning in (
        (("-v", "--verbose"), more),
        (("-q", "--quiet"), less),
        (("--traceback",), trace),
    ):
        parser.add_argument(*names, action="store_true", default=default, help=meaning)


def add_providers(parser: argparse.ArgumentParser, *, ep_help: str) -> None:
    """Add `--ep`, `-c`, `-p`, `--free-dimension`, `--custom-ops-library` and
    `--host-plugin`.
    """
    of_library = "a library of custom operators for onnxruntime; may be repeated"
    of_session = "a session option, such as ep.context_embed_mode=1; may be repeated"
    of_host = (
        "an installed host plugin that wraps the hooks of EPs, such as trace; may be "
        "repeated, the outermost first"
    )
    of_ep = "an option of one EP, such as QNN.htp_arch=73; may be repeated"
    of_dimension = (
        "the length of an open dimension of the model, such as batch=1; may be repeated"
    )
    for names, form, meaning in (
        (("--ep",), "EP", ep_help),
        (("-c", "--config"), "KEY=VALUE", of_session),
        (("-p", "--provider-option"), _OPTION_OF_EP, of_ep),
        (("--free-dimension",), "NAME=LENGTH", of_dimension),
        (("--custom-ops-library",), "FILE", of_library),
        (("--host-plugin",), "NAME", of_host),
    ):
        parser.add_argument(
            *names, action="append", default=[], metavar=form, help=meaning
        )


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add `--input` and `--seed`."""
    parser.add_argument(
        "--input", metavar="IN.npz", help="the inputs by name (default: random ones)"
    )
    parser.add_argument(
        "--seed",
        type=whole_number,
        default=0,
        metavar="N",
        help="seed of random inputs (default: 0)",
    )


def whole_number(text: str, *, least: int = 0) -> int:
    """Return the number that an argument is; argparse refuses any other."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least}")
    return int(text)


def session_options(arguments: argparse.Namespace, console: Console) -> SessionOptions:
    """Return the session options of `--ep`, `-c`, `-p`, `--free-dimension`,
    `--custom-ops-library` and `--host-plugin`.

    Raises:
        InvalidArgument: one of them is malformed, unknown, or given twice.
        Fail: there is no such library.
        NotImplementedByProvider: no installed plugin provides an EP.
    """
    from epctx_core import SessionOptions

    session = SessionOptions()
    add_config(session, arguments.config, console, arguments.free_dimension)
    for path in arguments.custom_ops_library:
        session.register_custom_ops_library(path)
    for name in arguments.host_plugin:
        session.add_host_plugin(name)
    options = provider_options(arguments.provider_option, arguments.ep)
    optional = {get_stem(name) for name in session.config().optional_providers}
    for name in arguments.ep:
        if get_stem(name) not in optional:
            require_plugin(name)
        session.add_provider(name, options[name])
    return session


def add_config(
    session: SessionOptions,
    texts: Iterable[str],
    console: Console,
    dimensions: Iterable[str] = (),
) -> None:
    """Add the entries of `-c`, and the lengths of `--free-dimension`, to session
    options; warn of entries without an effect.

    Raises:
        InvalidArgument: one is malformed, unknown, or given twice.
    """
    for text in texts:
        key, value = _split(text, "-c")
        session.add_session_config_entry(key, value)

    for key in session.ignored_config_entries:
        console.warn(f"the session option {key!r} has no effect.")
    for text in dimensions:
        session.add_free_dimension_override_by_name(*parse_dimension(text))


def _split(text: str, flag: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InvalidArgument(f"{flag} {text!r} is not of the form KEY=VALUE.")
    return key, value


def parse_dimension(text: str) -> tuple[str, int]:
    """Return name and length of `NAME=LENGTH`; a name may contain `=`."""
    name, _, length = text.rpartition("=")
    if not name or not length.isdecimal():
        raise InvalidArgument(
            f"--free-dimension {text!r} is not of the form NAME=LENGTH, such as "
            "batch=1."
        )
    return name, int(length)


def provider_options(
    texts: Sequence[str], eps: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return the options of `-p` for each EP, by the EP's name as it was given.

    Raises:
        InvalidArgument: one is malformed, or of another EP.
    """
    options: dict[str, dict[str, str]] = {name: {} for name in eps}
    for text in texts:
        left, value = _split(text, "-p")
        # An EP name may contain dots: those that were given show where it ends.
        matches = [
            (name, key) for name in eps if (key := _key_after(left, name)) is not None
        ]
        if not matches:
            raise _no_such_ep(left, eps)
        name, key = matches[0]
        options[name][key] = value
    return options


def get_stem(name: str) -> str:
    """Return the common part of an EP's names: `distribution:QNN`, `QNN` and
    `qnnExecutionProvider`.
    """
    return name.rpartition(":")[2].casefold().removesuffix(_SUFFIX)


def _key_after(left: str, ep: str) -> str | None:
    """Return the key of `EP.KEY` if it is of this EP, else None."""
    names = [get_stem(ep), f"{get_stem(ep)}{_SUFFIX}"]
    if distribution := ep.rpartition(":")[0].casefold():
        names += [f"{distribution}:{name}" for name in names]

    for name in names:
        prefix = f"{name}."
        if left.casefold().startswith(prefix) and len(left) > len(prefix):
            return left[len(prefix) :]
    return None


def _no_such_ep(left: str, eps: Sequence[str]) -> InvalidArgument:
    """Return the error for an option of another EP; its value, which may be secret, is
    not shown.
    """
    ep, dot, _ = left.partition(".")
    option = f"{left}=…"
    if not dot:
        return InvalidArgument(
            f"-p {option!r} is not of the form EP.KEY=VALUE, such as QNN.htp_arch=73."
        )
    selection = f"only {', '.join(eps)} was given" if eps else "no EP was given"
    correction = suggestion(ep, eps)
    return InvalidArgument(
        f"-p {option!r} is an option of {ep}, but {selection}.{correction}",
        hint=None if correction else f"Add --ep {ep}.",
    )


def no_ep(command: str) -> InvalidArgument:
    """Return the error for a command without `--ep`."""
    from epctx_cli.examples import choose_example
    from epctx_core import get_available_providers

    installed = [name for name in get_available_providers() if name != CPU_EP]
    hint = "Install a plugin, then see `epctx plugins list`."
    if example := choose_example():
        hint = f"Add --ep {example}."
    return InvalidArgument(
        f"{command} needs an Execution Provider. Installed: "
        f"{', '.join(installed) or 'none'}.",
        hint=hint,
    )


def require_plugin(name: str) -> None:
    """Raise NotImplementedByProvider if no installed plugin provides an EP."""
    from epctx_core import default_registry

    ep = name.rpartition(":")[2]
    if get_stem(ep) == get_stem(CPU_EP) or default_registry.find(ep):
        return
    try:
        default_registry.resolve(name)
    except InvalidArgument as error:
        raise NotImplementedByProvider(
            error.message, ep=name, hint=error.hint
        ) from error
