"""Plugin EPs of vendors that this package does not know by name."""

from __future__ import annotations

import builtins
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_core.errors import InvalidArgument
from epctx_core.plugin import ProviderOption
from epctx_onnxruntime.providers.base import OnnxRuntimeProvider
from epctx_onnxruntime.providers.library import PluginLibrary

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from epctx_core import Registry


def register_plugin_ep(
    name: str,
    *,
    library: str | os.PathLike[str] = "",
    module: str = "",
    distribution: str = "",
    options: Sequence[ProviderOption] = (),
    registry: Registry | None = None,
) -> type[OnnxRuntimeProvider]:
    """Make a plugin EP of onnxruntime an EP of this process, and of the processes that
    isolation starts for it.

    How its native code takes damage is unknown, so it has `needs_verified_payloads`.

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
        ep=name,
        distribution=distribution,
        module=module,
        # Another process may work in another folder.
        path=str(Path(library).absolute()) if library else "",
    )
    made = _make_class(found, tuple(options))
    (registry or default_registry).register(made)
    return made


def make_class_again(
    library: Mapping[str, str], options: Sequence[Mapping[str, Any]]
) -> type[OnnxRuntimeProvider]:
    """Return the class that `register_plugin_ep` made in another process.

    Args:
        library: the fields of its `PluginLibrary`.
        options: the fields of each of its options, with the name of the type.
    """
    declared = [
        {
            **each,
            "type": getattr(builtins, each["type"]),
            "choices": tuple(each["choices"]),
        }
        for each in options
    ]
    return _make_class(
        PluginLibrary(**library), tuple(ProviderOption(**each) for each in declared)
    )


def _make_class(
    library: PluginLibrary, options: tuple[ProviderOption, ...]
) -> type[OnnxRuntimeProvider]:
    fields = [
        {**asdict(option), "type": getattr(option.type, "__name__", "")}
        for option in options
        # What is none is refused when the class is registered.
        if isinstance(option, ProviderOption)
    ]
    members = {
        "__doc__": f"{library.ep} of onnxruntime.",
        "__module__": __name__,
        "name": library.ep,
        "vendor": library.distribution or library.module or library.path,
        "options": options,
        "library": library,
        "needs_verified_payloads": True,
        "factory": (
            f"{__name__}:{make_class_again.__name__}",
            {"library": asdict(library), "options": fields},
        ),
    }
    return type(library.ep, (OnnxRuntimeProvider,), members)
