"""Wheels with EPs of onnxruntime that know nothing of epctx: plugin EPs by
onnxruntime's packaging convention, and builds of onnxruntime with EPs inside.

By the convention the distribution is called `onnxruntime-ep-<id>`; its module has
`get_library_path()` and `get_ep_names()`. Finding wheels reads their files and imports
none of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ast

    from importlib_metadata import IDistribution

PREFIX = "onnxruntime-ep-"
EP_GROUP = "epctx.execution_providers"
_EP_NAME = re.compile(r"\w+")
_REQUIRED = re.compile(r"\s*([\w.-]+)")
_NAMING = ("get_ep_names", "get_ep_name")
"""Functions that name the EPs of a wheel, in order of precedence."""


class Wheel(NamedTuple):
    """Installed wheel that keeps the convention, or build of onnxruntime.

    Attributes:
        distribution: its name.
        version: its version.
        module: the import name of its module; empty for a build of onnxruntime.
        eps: names of its EPs; empty where they are not known without an import.
    """

    distribution: str
    version: str
    module: str
    eps: tuple[str, ...]


def list_eps(
    infos: Iterable[Path], builds: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield distribution, version, EP name, `module:Class` and problem of each EP of
    builds of onnxruntime, and of the wheels that no plugin of epctx requires; see
    `finding.find_eps`.

    A wheel whose EPs are not known without an import is listed by its own name, with
    that problem.

    Args:
        infos: metadata folders.
        builds: EPs inside each build of onnxruntime.
    """
    wheels = read_wheels(infos, builds)
    required = _list_required() if wheels else set()
    for name, wheel in wheels.items():
        if wheel.module and name in required:
            continue
        about = (wheel.distribution, wheel.version)
        path = _underscore(name)
        for ep in wheel.eps:
            yield *about, ep, f"{__package__}.registration:{path}.{ep}", ""
        if wheel.module and not wheel.eps:
            reason = (
                f"{_NAMING[0]}() of its module {wheel.module} does not return "
                "constants, so that the names of its EPs are not known before an "
                "import; epctx_onnxruntime.providers.register_plugin_ep("
                f"{wheel.distribution!r}) imports it"
            )
            yield *about, wheel.distribution, "", reason


def find_module(distribution: str) -> str:
    """Return the import name of a distribution's module: by its files, or by its name
    if it is not installed.
    """
    from importlib_metadata import distributions

    package = next(iter(distributions(name=distribution)), None)
    return (package and _find_module(package)) or _underscore(distribution)


# -- metadata and source
# --------------------------------------------------------------------------------------


def read_wheels(
    infos: Iterable[Path], builds: Mapping[str, tuple[str, ...]]
) -> dict[str, Wheel]:
    """Return wheels by their names; of one found twice, the first."""
    wheels: dict[str, Wheel] = {}
    for info in infos:
        with suppress(Exception):  # metadata of other packages fails in many ways
            if (wheel := _read_wheel(info, builds)) is not None:
                wheels.setdefault(_normalise(wheel.distribution), wheel)
    return wheels


def _read_wheel(info: Path, builds: Mapping[str, tuple[str, ...]]) -> Wheel | None:
    """Return a wheel; None for one without a module that names EPs, as those are that
    only require another wheel.
    """
    from importlib_metadata import Distribution

    distribution = Distribution.at(info)
    name, version = distribution.metadata["Name"], distribution.version
    if (built_in := builds.get(_normalise(name))) is not None:
        return Wheel(name, version, "", built_in)
    module = _find_module(distribution)
    source = _find_source(distribution, module)
    text = source.read_text("utf-8", errors="replace") if source else ""
    if not any(function in text for function in _NAMING):
        return None
    return Wheel(name, version, module, _read_names(text))


def _find_module(distribution: IDistribution) -> str:
    """Return the import name of a distribution's one module: as its `top_level.txt`
    says, else by its list of files.
    """
    names = (distribution.read_text("top_level.txt") or "").split() or [
        parts[0].removesuffix(".py")
        for parts in (file.parts for file in distribution.files or ())
        if parts[-1] == "__init__.py" or (len(parts) == 1 and parts[0].endswith(".py"))
    ]
    default = _underscore(distribution.metadata["Name"])
    return default if default in names else next(iter(names), "")


def _find_source(distribution: IDistribution, module: str) -> Path | None:
    places = (f"{module}/__init__.py", f"{module}.py")
    paths = (Path(str(distribution.locate_file(place))) for place in places)
    return next((path for path in paths if module and path.is_file()), None)


def _list_required() -> set[str]:
    """Return the distributions that packages with EPs of epctx require, extras
    included.
    """
    from importlib_metadata import distributions

    required: set[str] = set()
    for package in distributions():
        with suppress(Exception):  # metadata of other packages fails in many ways
            if EP_GROUP in (package.read_text("entry_points.txt") or ""):
                matches = map(_REQUIRED.match, package.requires or ())
                required |= {_normalise(match[1]) for match in matches if match}
    return required


def _normalise(name: str) -> str:
    """Return the name of a distribution as packages are compared (PEP 503)."""
    return re.sub("[-_.]+", "-", name).lower()


def _underscore(name: str) -> str:
    return _normalise(name).replace("-", "_")


# -- names of EPs without an import
# --------------------------------------------------------------------------------------


def _read_names(source: str) -> tuple[str, ...]:
    """Return the EP names that a module's functions return; empty where a name is not a
    constant of the module.
    """
    import ast

    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()
    assigned: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            assigned[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            assigned |= {node.target.id: node.value} if node.value else {}
        elif isinstance(node, ast.FunctionDef):
            assigned |= _read_return(node)
    expression = next((assigned[name] for name in _NAMING if name in assigned), None)
    names = [] if expression is None else list(_list_constants(expression, assigned))
    if not all(_EP_NAME.fullmatch(name) for name in names):
        return ()
    return tuple(dict.fromkeys(names))


def _read_return(function: ast.FunctionDef) -> dict[str, ast.expr]:
    """Return what a function returns, by its name, if it only returns something."""
    import ast

    *others, last = function.body
    is_plain = all(
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for node in others
    )
    if is_plain and isinstance(last, ast.Return) and last.value is not None:
        return {function.name: last.value}
    return {}


def _list_constants(
    expression: ast.expr, assigned: dict[str, ast.expr], depth: int = 8
) -> Iterator[str]:
    """Yield the texts that an expression has; an empty one for what is no constant."""
    import ast

    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        yield expression.value
        return
    if isinstance(expression, ast.List | ast.Tuple):
        for element in expression.elts:
            yield from _list_constants(element, assigned, depth - 1)
        return
    if isinstance(expression, ast.Call) and not expression.args:
        expression = expression.func
    value = assigned.get(expression.id) if isinstance(expression, ast.Name) else None
    if value is None or depth <= 0:
        yield ""
    else:
        yield from _list_constants(value, assigned, depth - 1)
