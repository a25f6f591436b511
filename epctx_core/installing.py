"""Names of packages, and commands that install them, for hints alone: from the index,
or from where epctx-core itself was installed.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

_UNDER_ONNXRUNTIME = ("epctx-blobs", "epctx-kernels", "epctx-native-formats")
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "epctx-blobs": (),
    "epctx-batch": ("epctx-cache", "epctx-files", "epctx-isolation"),
    "epctx-bench": (),
    "epctx-cache": (),
    "epctx-cli": ("epctx-isolation", "epctx-conformance"),
    "epctx-conformance": (),
    "epctx-files": (),
    "epctx-genai": ("epctx-cache", "epctx-files", "epctx-isolation"),
    "epctx-isolation": (),
    "epctx-kernels": (),
    "epctx-onnxruntime": _UNDER_ONNXRUNTIME,
    "epctx-onnxruntime[cpu]": _UNDER_ONNXRUNTIME,
    "epctx-onnxruntime[cached]": (
        *_UNDER_ONNXRUNTIME,
        "epctx-cache",
        "epctx-isolation",
    ),
    "epctx-onnxruntime[checking]": (
        *_UNDER_ONNXRUNTIME,
        "epctx-cli",
        "epctx-conformance",
        "epctx-isolation",
    ),
    "epctx-onnxruntime[qnn]": (*_UNDER_ONNXRUNTIME, "epctx-isolation"),
    "epctx-onnxruntime[openvino]": _UNDER_ONNXRUNTIME,
    "epctx-openvino": ("epctx-native-formats",),
    "epctx-native-formats": (),
    "onnxruntime-ep-epctx": (),
    "epctx-report": (
        "epctx-cli",
        "epctx-conformance",
        "epctx-files",
        "epctx-isolation",
    ),
    "epctx-sim-openvino": ("epctx-sim-sdk",),
    "epctx-sim-qnn": ("epctx-sim-sdk",),
    "epctx-sim-sdk": (),
    "epctx-sim-vitisai": ("epctx-sim-sdk",),
}
"""Packages of epctx beside the core, each with the others of them that it needs."""
_CORE = "epctx-core"
OVER_ONNXRUNTIME = "epctx-onnxruntime"
"""Package for any build of onnxruntime."""
_EXTRAS = {"ort": "epctx-onnxruntime[cpu]"}
"""Packages that extras of epctx-core install, where they have another name."""
ENGINE = ("epctx.engines", "onnxruntime")
"""The engine of epctx-onnxruntime, by group and name."""
PROVIDED_BY: Mapping[tuple[str, str], str] = {
    ENGINE: "epctx-core[ort]",
    ("epctx.host_plugins", "profile"): "epctx-bench",
    ("epctx.host_plugins", "trace"): "epctx-conformance",
    ("epctx.isolation", "process"): "epctx-isolation",
    ("epctx.model_formats", "ORT"): "epctx-onnxruntime",
}
"""Requirement that installs an entry point, by its group and name."""


class KnownEp(NamedTuple):
    """EP of onnxruntime.

    Attributes:
        name: its name.
        vendor: whose EP it is.
        reserved: the distribution name that is reserved for that vendor.
        package: the package with it that works beside an onnxruntime.
        build: the distribution of onnxruntime that has it inside.
        system: the only operating system of that build.
    """

    name: str
    vendor: str
    reserved: str
    package: str = ""
    build: str = ""
    system: str = ""


EPS = (
    KnownEp("QNNExecutionProvider", "Qualcomm", "epctx-qnn", "epctx-onnxruntime[qnn]"),
    KnownEp(
        "OpenVINOExecutionProvider",
        "Intel",
        "epctx-openvino",
        "epctx-openvino",
        "onnxruntime-openvino",
    ),
    KnownEp("VitisAIExecutionProvider", "AMD", "epctx-vitisai"),
    KnownEp("MorphiZenExecutionProvider", "AMD", "epctx-morphizen"),
    KnownEp(
        "MIGraphXExecutionProvider",
        "AMD",
        "epctx-migraphx",
        build="onnxruntime-migraphx",
        system="Linux",
    ),
    KnownEp(
        "TensorrtExecutionProvider", "NVIDIA", "epctx-tensorrt", build="onnxruntime-gpu"
    ),
    KnownEp(
        "NvTensorRTRTXExecutionProvider",
        "NVIDIA",
        "epctx-tensorrt-rtx",
        "onnxruntime-ep-nv-tensorrt-rtx",
    ),
    KnownEp("CUDAExecutionProvider", "NVIDIA", "epctx-cuda", build="onnxruntime-gpu"),
    KnownEp(
        "DmlExecutionProvider",
        "Microsoft",
        "epctx-dml",
        build="onnxruntime-directml",
        system="Windows",
    ),
    KnownEp(
        "WebGpuExecutionProvider",
        "Microsoft",
        "epctx-webgpu",
        "onnxruntime-ep-webgpu",
        "onnxruntime-webgpu",
    ),
    KnownEp(
        "CoreMLExecutionProvider",
        "Apple",
        "epctx-coreml",
        build="onnxruntime",
        system="macOS",
    ),
)
"""EPs of onnxruntime."""
_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:\[([^\]]*)\])?")


def install_command(*requirements: str, pip: str = "pip") -> str:
    """Return the command that installs packages.

    No index may have those of epctx: where epctx-core was installed from a folder or a
    file, they come from its folder.

    Args:
        requirements: as pip takes them, such as `epctx-core[ort]` or `onnx>=1.23`.
        pip: the program.
    """
    arguments: list[str] = []
    origin = _find_origin()
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        name, extras = match.groups("") if match else ("", "")
        # Another version of the core is not where this one is from.
        is_ours = name in PACKAGES or (name == _CORE and extras)
        if origin is None or not is_ours:
            arguments.append(requirement)
        elif origin.is_dir():
            arguments += _find_projects(name, extras, origin) or [requirement]
        else:
            arguments += ["--find-links", str(origin.parent), requirement]
    return f"{pip} install {shlex.join(dict.fromkeys(arguments))}"


def install_engine_command() -> str:
    """Return the command that installs the engine of epctx-onnxruntime; over no build
    of onnxruntime that is there.
    """
    spec = find_spec("onnxruntime")
    # A folder that pip left, as there are strange files in it, has no origin.
    if spec is not None and spec.origin is not None:
        return install_command(OVER_ONNXRUNTIME)
    return install_command(PROVIDED_BY[ENGINE])


def known_ep(name: str) -> KnownEp | None:
    """Return an EP of onnxruntime by `X` or `XExecutionProvider`, without case."""
    short = _shorten(name)
    return next((known for known in EPS if _shorten(known.name) == short), None)


def _shorten(name: str) -> str:
    return name.casefold().removesuffix("executionprovider")


def describe_installation(name: str) -> str:
    """Return how to install a vendor's EP of onnxruntime, and what simulates it; empty
    for an EP that is not known.
    """
    known = known_ep(name)
    if known is None:
        return ""
    package = known.package or known.build
    needed = () if package in PACKAGES else (OVER_ONNXRUNTIME,)
    text = f"{install_command(package, *needed)} provides {known.name}"
    if not package:
        text = (
            f"epctx has no package for {known.name} ({known.vendor}): "
            f"{known.reserved} is reserved for it"
        )
    elif package == known.build:
        where = f" on {known.system}" if known.system else ""
        text += f"{where}, in place of another onnxruntime"

    simulated = known.reserved.replace("epctx-", "epctx-sim-", 1)
    if simulated in PACKAGES:
        text += (
            f"; {install_command(simulated)} provides a simulated one, which does not "
            "read payloads made for hardware"
        )
    return f"{text}."


def _find_origin() -> Path | None:
    """Return the folder or file that epctx-core was installed from (PEP 610); None for
    an index, or if it is no longer there.
    """
    from urllib.parse import unquote, urlsplit

    from importlib_metadata import distribution

    try:
        text = distribution(_CORE).read_text("direct_url.json") or "{}"
        url = urlsplit(json.loads(text).get("url", ""))
        # A drive of Windows comes behind a slash. `url2pathname` would import HTTP.
        path = Path(re.sub("^/(?=[A-Za-z]:)", "", unquote(url.path)))
    except (ImportError, OSError, ValueError, TypeError, AttributeError):
        return None
    return path if url.scheme == "file" and path.exists() else None


def _find_projects(name: str, extras: str, origin: Path) -> list[str]:
    """Return the projects below a repository's folder that a requirement names, with
    those that they need; empty if one of them is not there.
    """
    requirements = [f"{name}[{extras}]" if extras else name]
    if name == _CORE:
        requirements = [
            _EXTRAS.get(extra.strip(), f"epctx-{extra.strip()}")
            for extra in extras.split(",")
        ]
    projects = [
        origin / "plugins" / each
        for one in requirements
        for each in (*_list_missing(one), one)
    ]
    # An extra is no part of a folder's name.
    folders = [path.with_name(path.name.partition("[")[0]) for path in projects]
    if all((folder / "pyproject.toml").is_file() for folder in folders):
        return [str(path) for path in projects]
    return [f"{origin}[{extras}]"] if name == _CORE else []


def _list_missing(package: str) -> Iterator[str]:
    """Yield the packages of epctx that another of them needs and that are not
    installed.
    """
    from importlib_metadata import distribution

    for needed in PACKAGES.get(package, PACKAGES.get(package.partition("[")[0], ())):
        try:
            distribution(needed)
        except ImportError:
            yield needed
