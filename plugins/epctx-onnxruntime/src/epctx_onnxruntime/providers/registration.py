"""Plugin EPs of vendors that this package does not know by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_core.errors import InvalidArgument
from epctx_onnxruntime.providers.base import OnnxRuntimeProvider
from epctx_onnxruntime.providers.library import PluginLibrary

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from epctx_core import Registry
    from epctx_core.plugin import ProviderOption


def register_plugin_ep(
    name: str,
    *,
    library: str | os.PathLike[str] = "",
    module: str = "",
    distribution: str = "",
    options: Sequence[ProviderOption] = (),
    registry: Registry | None = None,
) -> type[OnnxRuntimeProvider]:
    """Make a plugin EP of onnxruntime an EP of this process.

    Args:
        name: the EP's name, which its nodes have as `source`.
        library: path of the EP's library.
        module: instead of that, a package whose `get_library_path` or `library_path`
            names it.
        distribution: the pip package that contains the library; told in messages and
            keys of caches.
        options: the vendor's options, which are passed on as text.
        registry: a registry of EPs; the default one where None.

    Returns:
        The EP's class.

    Raises:
        InvalidArgument: the name is taken, or not exactly one of `library` and `module`
            is given.
        PluginError: name or options break the rules for EPs.

    Example:
        >>> register_plugin_ep(
        ...     "AcmeExecutionProvider",
        ...     module="onnxruntime_acme",
        ...     distribution="onnxruntime-acme",
        ... )
    """
    from epctx_core import default_registry

    if bool(library) == bool(module):
        raise InvalidArgument(
            f"{name}: give either the path of its library or its module.", ep=name
        )
    found = PluginLibrary(
        ep=name, distribution=distribution, module=module, path=str(library)
    )
    members = {
        "__doc__": f"{name} of onnxruntime.",
        "__module__": __name__,
        "name": name,
        "vendor": distribution or module or str(library),
        "options": tuple(options),
        "library": found,
    }
    made: type[OnnxRuntimeProvider] = type(name, (OnnxRuntimeProvider,), members)
    (registry or default_registry).register(made)
    return made
