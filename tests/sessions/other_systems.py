"""What Python lacks on Windows and on macOS, of what it has here.

The names are typeshed's, which mypy brings: its stubs say under `sys.platform` what each
system has, and its own tests compare them with Python on all three. How calls behave on
Windows has its source beside it, in `without_posix.py`.
"""

from __future__ import annotations

import ast
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SYSTEMS = {"Windows": "win32", "macOS": "darwin"}
"""Systems to their `sys.platform`."""
MODULES = ("os", "mmap", "errno", "signal", "time")
"""Modules that have fewer names elsewhere, of those that touch files and processes."""
POSIX_MODULES = ("fcntl", "resource", "pwd", "grp", "termios")
"""Modules that a system may have not at all."""


def list_missing(system: str) -> tuple[dict[str, list[str]], list[str]]:
    """Return the names that a system's Python does not have in each module, and the
    modules that it does not have.
    """
    platform = SYSTEMS[system]
    missing = {
        module: sorted(_names(module, "linux") - _names(module, platform))
        for module in MODULES
    }
    return missing, [module for module in POSIX_MODULES if not _names(module, platform)]


def _names(module: str, platform: str) -> set[str]:
    """Return the public names of a module on a platform."""
    names = _declared(ast.parse(_find_stub(module).read_text("utf-8")).body, platform)
    return {name for name in names if not name.startswith("_")}


def _find_stub(module: str) -> Path:
    spec = find_spec("mypy")
    assert spec is not None
    assert spec.origin is not None
    stubs = Path(spec.origin).parent / "typeshed" / "stdlib"
    package = stubs / module / "__init__.pyi"
    return package if package.is_file() else stubs / f"{module}.pyi"


def _declared(body: Iterable[ast.stmt], platform: str) -> set[str]:
    """Return the names that a stub declares for a platform and this Python."""
    declared = set()
    known = {"sys": SimpleNamespace(platform=platform, version_info=sys.version_info)}
    for node in body:
        if isinstance(node, ast.If):
            applies = eval(ast.unparse(node.test), known)  # noqa: S307 - of typeshed
            declared |= _declared(node.body if applies else node.orelse, platform)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            declared.add(node.name)
        elif isinstance(node, ast.AnnAssign):
            declared.add(ast.unparse(node.target))
    return declared
