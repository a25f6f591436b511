"""The arguments of onnxruntime's tool `ep_weight_sharing_ctx_gen`, turned into those of `epctx share`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_core.errors import InvalidArgument, NoSuchFile
from epctx_core.ext import suggestion

if TYPE_CHECKING:
    import argparse

    from epctx_cli.arguments import CommandParser
    from epctx_cli.console import Console

_LIBRARY = ("ep_library_registration_name", "ep_library_path")
_KEYS = (*_LIBRARY, "selected_ep_name", "selected_ep_device_indices", "default_ep_options")


def add_arguments(parser: CommandParser) -> None:
    """Declare what the tool has and we spell otherwise; its `-p FILE.json` comes by our `-p`."""
    group = parser.add_argument_group(
        "as ep_weight_sharing_ctx_gen has them",
        "-p FILE.json chooses the EP ('selected_ep_name') and its options ('default_ep_options')",
    )
    group.add_argument("-e", dest="ep", action="append", metavar="EP", help="the same as --ep")
    group.add_argument("-C", dest="entries", metavar='"KEY|VALUE ..."', help="session options")
    group.add_argument("-i", dest="options", metavar='"KEY|VALUE ..."', help="options of the only EP")


def take(arguments: argparse.Namespace, console: Console) -> None:
    """Put what was given in the tool's form to ours.

    Raises:
        InvalidArgument: it is malformed, or says an EP or its options twice.
        NoSuchFile: there is no such JSON file.
    """
    arguments.config += [f"{key}={value}" for key, value in _pairs(arguments.entries, "-C")]
    given: list[str] = arguments.provider_option
    files = [text for text in given if _is_file(text)]
    arguments.provider_option = [text for text in given if not _is_file(text)]
    options = _pairs(arguments.options, "-i")
    if files:
        _take_file(files, arguments, console, has_options=bool(options))
    elif options and len(arguments.ep) != 1:
        raise InvalidArgument("-i does not say of which EP.", hint="Write -p EP.KEY=VALUE.")
    arguments.provider_option += [f"{arguments.ep[0]}.{key}={value}" for key, value in options]


def split_models(given: str) -> list[str]:
    """Return the models of one argument: a path, or several with commas between them."""
    return [given] if Path(given).exists() else [part for part in given.split(",") if part]


def _pairs(given: str | None, flag: str) -> list[tuple[str, str]]:
    pairs = []
    for word in (given or "").split():
        key, bar, value = word.partition("|")
        if not bar or not key:
            raise InvalidArgument(f"{flag} {word!r} is not of the form KEY|VALUE.")
        pairs.append((key, value))
    return pairs


def _is_file(text: str) -> bool:
    return "=" not in text and text.casefold().endswith(".json")


def _take_file(
    files: list[str], arguments: argparse.Namespace, console: Console, *, has_options: bool
) -> None:
    path = Path(files[0])
    if len(files) > 1:
        raise InvalidArgument(f"-p names {len(files)} files.", hint="One file chooses the one EP.")
    if arguments.ep or has_options:
        raise InvalidArgument(
            f"-p {path.name} chooses the EP and its options, and so do -e, --ep and -i.",
            hint="Leave one of them out; -p EP.KEY=VALUE adds an option to those of the file.",
        )
    config = _read(path)
    ep, options = config.get("selected_ep_name"), config.get("default_ep_options", {})
    if not isinstance(ep, str) or not ep:
        raise InvalidArgument(
            f"{path.name} has no text 'selected_ep_name', so it chooses no EP.",
            path=path,
            hint="An EP is chosen by name here: there are no devices for 'selected_ep_device_indices'.",
        )
    if not isinstance(options, dict) or not all(isinstance(value, str) for value in options.values()):
        raise InvalidArgument(f"'default_ep_options' of {path.name} does not map names to texts.", path=path)
    if config.get("selected_ep_device_indices"):
        raise InvalidArgument(
            f"{path.name} has both 'selected_ep_name' and 'selected_ep_device_indices'.",
            path=path,
            hint="Leave out the indices: there are no devices to choose from.",
        )
    if library := config.get("ep_library_path"):
        console.warn(f"{library!r} is not loaded: {ep} is an installed plugin here (epctx plugins list).")
    arguments.ep.append(ep)
    # Those of the command line come later, and an option that is there twice has its last value.
    arguments.provider_option[:0] = [f"{ep}.{key}={value}" for key, value in options.items()]


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise NoSuchFile(f"there is no file {str(path)!r}, which -p names.", path=path) from None
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{path.name} cannot be read as JSON: {error}.", path=path) from error
    if not isinstance(config, dict):
        raise InvalidArgument(f"{path.name} is not a JSON object.", path=path)
    unknown = next((key for key in config if key not in _KEYS), None)
    if unknown is not None:
        raise InvalidArgument(
            f"{path.name} has the unknown key {unknown!r}.{suggestion(unknown, _KEYS)}", path=path
        )
    return config
