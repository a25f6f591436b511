"""The options of the simulated VitisAI EP, by the names and values of the real one, and
what follows from them.

Knows no graph and no payload.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from epctx_sim_sdk.options import runtime_options, without_effect, without_hardware

from epctx_core.errors import InvalidArgument, NoSuchFile
from epctx_core.plugin import ProviderOption

EP = "VitisAIExecutionProvider"
TARGETS = ("X1", "X2")
"""The integer back ends: X1 the older one, X2 that of newer devices."""

_MOST_BYTES = 1 << 20
"""Bytes that a configuration may have."""
VAIP_VERSION = "sim-1.7.0"
COMPONENTS = ("vaip", "xcompiler", "xrt")
"""Parts whose versions the real EP states: its core, its compiler, its runtime with the
driver.
"""

_WITHOUT_HARDWARE = (
    "ai_analyzer_profiling", "ai_analyzer_visualization", "enable_cache_file_io_in_mem",
    "external_ep_library", "xclbin", "xlnx_enable_py3_round",
)  # fmt: skip

OPTIONS = (
    ProviderOption(
        "target",
        str,
        default="X2",
        choices=TARGETS,
        doc=(
            "The back end to compile for, and when loading that of the simulated "
            "device."
        ),
    ),
    ProviderOption(
        "cache_dir",
        str,
        default="",
        doc=(
            "A folder for compiled partitions, used by later compiles; empty to keep "
            "none on disk."
        ),
    ),
    ProviderOption(
        "cache_key",
        str,
        default="",
        doc=(
            "Names the model's folder in cache_dir and begins the archive's key; a "
            "load with another one is refused."
        ),
    ),
    ProviderOption(
        "encryption_key",
        str,
        default="",
        doc=(
            "64 hexadecimal digits (256 bits): payloads and cache are encrypted. "
            "Needs epctx-sim-vitisai[encryption]."
        ),
        secret=True,
    ),
    ProviderOption(
        "config_file",
        str,
        default="",
        doc=(
            "A compiler's configuration, a file of one JSON object. Checked to be "
            "one; INT8 needs none of it."
        ),
    ),
    without_effect(
        "opt_level", 0, "How long the compiler may search.", (0, 1, 2, 3, 65536)
    ),
    without_effect(
        "log_level",
        "error",
        "What the real EP prints; here the host's logging decides.",
        ("info", "warning", "error", "fatal"),
    ),
    *without_hardware(*_WITHOUT_HARDWARE),
    *runtime_options(*COMPONENTS, api=1),
    ProviderOption(
        "runtime_target",
        str,
        default="",
        choices=("", *TARGETS),
        doc=(
            "Simulation only: the back end of the simulated device when loading; "
            "empty for that of target."
        ),
    ),
)

_CACHE_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_OTHER_CHARACTERS = re.compile(r"[^A-Za-z0-9_.-]")
_HEX_KEY = re.compile(r"[0-9a-fA-F]{64}")


def check_cache_key(options: Mapping[str, Any]) -> str:
    """Return the option `cache_key`; it becomes the name of a folder.

    Raises:
        InvalidArgument: it could not be one.
    """
    key = str(options["cache_key"])
    if key and not _CACHE_KEY.fullmatch(key):
        raise InvalidArgument(
            f"{EP}: option 'cache_key' is {key!r:.100}, which cannot name a folder.",
            ep=EP,
            hint=(
                "1 to 100 letters, digits, '_', '.' and '-', without a '.' or '-' in "
                "front."
            ),
        )
    return key


def check_config_file(options: Mapping[str, Any]) -> None:
    """Do nothing if `config_file` is empty or names a file of one JSON object.

    Raises:
        NoSuchFile: there is no such file.
        InvalidArgument: it holds something else.
    """
    if not options["config_file"]:
        return
    path = Path(options["config_file"])
    try:
        config = _read_json(path)
    except FileNotFoundError as error:
        raise NoSuchFile(
            f"{EP}: option 'config_file' names {str(path)!r}, which does not exist."
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise _make_error(path, str(error)) from error
    if not isinstance(config, dict):
        raise _make_error(path, f"it holds a {type(config).__name__}")


def _read_json(path: Path) -> Any:
    # A pipe would block, and a device never end.
    if path.stat().st_size > _MOST_BYTES or not path.is_file():
        raise ValueError(f"it is not a regular file of {_MOST_BYTES:,} bytes at most")
    return json.loads(path.read_bytes())


def _make_error(path: Path, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"{EP}: option 'config_file' names {str(path)!r}, which is no JSON object: "
        f"{why}.",
        ep=EP,
        hint="For INT8 models no configuration is needed; leave the option out.",
    )


def encryption_key(options: Mapping[str, Any]) -> bytes | None:
    """Return the 32 bytes of the option `encryption_key`; None without one.

    Raises:
        InvalidArgument: not 64 hexadecimal digits; the message does not show it.
    """
    text = str(options["encryption_key"])
    if not text:
        return None
    if not _HEX_KEY.fullmatch(text):
        raise InvalidArgument(
            f"{EP}: option 'encryption_key' has {len(text)} characters or others than "
            "hexadecimal digits.",
            ep=EP,
            hint="An AES-256 key is written as 64 hexadecimal digits.",
        )
    return bytes.fromhex(text)


def model_file_name(name: str) -> str:
    """Return the node attribute `onnx_model_filename`: a name only, never a path.

    Args:
        name: the model's stem, or its graph's name, which may hold anything.
    """
    last = name.replace("\\", "/").rpartition("/")[2]
    return f"{last or 'model'}.onnx"


def cache_folder_name(options: Mapping[str, Any], model: str) -> str:
    """Return the folder for a model in `cache_dir`: the option `cache_key`, or made of
    the model's name.
    """
    return check_cache_key(options) or "model-" + _OTHER_CHARACTERS.sub("_", model)[:80]


def target_name(options: Mapping[str, Any], target: str | None) -> str:
    """Return the back end to compile for: the host's target if it named one, else the
    option's.

    Raises:
        InvalidArgument: there is no such back end.
    """
    if target is None:
        return str(options["target"])
    if target.upper() not in TARGETS:
        raise InvalidArgument(
            f"{EP} has no target {target!r}.",
            ep=EP,
            hint=f"Its targets: {', '.join(TARGETS)}.",
        )
    return target.upper()


def compiler_facts(
    options: Mapping[str, Any], target: str | None = None
) -> dict[str, str]:
    """Return what the version rules must know about whatever is compiled with these
    options.
    """
    from epctx_sim_sdk.versions import DRIVER_VERSION, SDK_VERSION, stated_facts

    versions = dict(
        zip(COMPONENTS, (VAIP_VERSION, SDK_VERSION, DRIVER_VERSION), strict=True)
    )
    return stated_facts(EP, "VitisAI", options, versions) | {
        "target": target_name(options, target)
    }


def runtime_facts(
    options: Mapping[str, Any], target: str | None = None
) -> dict[str, str]:
    """Return the same about the simulated device that loads."""
    facts = compiler_facts(options, target)
    return facts | (
        {"target": str(options["runtime_target"])} if options["runtime_target"] else {}
    )
