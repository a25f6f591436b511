"""Import of names from other modules on first use (PEP 562).

Such a module has a table of them, `_HOME`, and imports all of each home for type
checkers.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctx_core.errors import PackageMissing


def make_forwarders(
    module: str, home: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a module with such a table; see
    `forward`.

    A module without an `__all__` of its own has one of the names whose packages are
    installed, so that `import *` fails for none of them.
    """

    def find(name: str) -> Any:
        if name == "__all__":
            return list_installed_names(home)
        return forward(module, home, name)

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[module]), *list_installed_names(home)})

    return find, list_names


def forward(module: str, home: Mapping[str, Iterable[str]], name: str) -> Any:
    """Import a name from its home and keep it in the module.

    Args:
        module: the name of the module.
        home: the modules that define names, with their names.
        name: the requested name.

    Raises:
        AttributeError: the table does not have it.
        PackageMissing: its home is a package of epctx that is not installed.
    """
    home_of_name = next((place for place, names in home.items() if name in names), None)
    if home_of_name is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    # Modules are made of objects that stay: to walk them again and again takes a
    # twentieth of the import of a session.
    collects = gc.isenabled()
    gc.disable()
    try:
        home_module = import_installed(home_of_name, needed_by=f"{module}.{name}")
    finally:
        if collects:
            gc.enable()
    value = getattr(home_module, name)
    setattr(sys.modules[module], name, value)
    return value


def list_installed_names(home: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the names of a table with installed packages."""
    return [
        n
        for place, names in home.items()
        if find_spec(place.partition(".")[0])
        for n in names
    ]


def import_installed(
    module: str, *, needed_by: str, distribution: str = ""
) -> ModuleType:
    """Import a module that may belong to another package.

    Args:
        module: its name.
        needed_by: the name, option or command that needs it.
        distribution: the package; empty for one of epctx, which is named after its
            module.

    Raises:
        PackageMissing: the package is not installed, or a library that it requires.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        missing = (error.name or "").partition(".")[0]
        if not missing or missing == package != error.name:
            raise
        distribution = distribution or package.replace("_", "-")
        lacking = (
            f"the package {distribution}"
            if missing == package
            else f"{missing} (required by {distribution})"
        )
        raise missing_package(lacking, needed_by, distribution) from error


def missing_package(lacking: str, needed_by: str, distribution: str) -> PackageMissing:
    """Return the error for what needs something that is not installed, with the command
    that installs its distribution.
    """
    from epctx_core.errors import PackageMissing
    from epctx_core.installing import install_command

    return PackageMissing(
        f"{needed_by} needs {lacking}, which is not installed.",
        hint=install_command(distribution),
    )
