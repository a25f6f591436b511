"""Plugin EPs of vendors that this package does not know by name."""

from __future__ import annotations

import builtins
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from epctx_core.errors import EpctxError, InvalidArgument
from epctx_core.plugin import ProviderOption
from epctx_onnxruntime.providers.base import OnnxRuntimeProvider
from epctx_onnxruntime.providers.finding import BUILDS, find_infos
from epctx_onnxruntime.providers.library import PluginLibrary
from epctx_onnxruntime.providers.wheels import PREFIX, find_module, read_wheels

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from epctx_core import PluginRecord, Registry

_log = logging.getLogger("epctx.devices")
ANY_OPTION = ProviderOption(
    "*", str, default=None, doc="Any other option: the vendor's code checks it."
)


def register_plugin_ep(
    name: str,
    *,
    library: str | os.PathLike[str] = "",
    module: str = "",
    distribution: str = "",
    options: Sequence[ProviderOption] = (ANY_OPTION,),
    registry: Registry | None = None,
) -> type[OnnxRuntimeProvider]:
    """Make a plugin EP of onnxruntime an EP of this process, and of the processes that
    isolation starts for it.

    How its native code takes damage is unknown, so it has `needs_verified_payloads`.

    Args:
        name: the EP's name, which its nodes have as `source`; or the name of an
            installed wheel `onnxruntime-ep-<id>`, which is imported and says it.
        library: path of the EP's library.
        module: instead of that, a package whose `get_library_path` or `library_path`
            names it; by default that of the distribution.
        distribution: the pip package that contains the library; told in messages and
            keys of caches.
        options: the vendor's options, which are passed on as text; by default any.
        registry: a registry of EPs; the default one where None.

    Returns:
        The EP's class.

    Raises:
        InvalidArgument: the name is taken, or not exactly one of `library` and `module`
            is given or known, or the wheel has several EPs.
        NotImplementedByProvider: the wheel is not installed or cannot be imported.
        PluginError: name or options break the rules for EPs.

    Examples:
        >>> register_plugin_ep("onnxruntime-ep-webgpu")
        >>> register_plugin_ep(
        ...     "AcmeExecutionProvider",
        ...     module="onnxruntime_acme",
        ...     distribution="onnxruntime-acme",
        ... )
    """
    from epctx_core import default_registry

    if name.startswith(PREFIX):
        name, distribution = _ask_name(name), name
    if distribution and not (library or module):
        module = find_module(distribution)
    if bool(library) == bool(module):
        raise InvalidArgument(
            f"{name}: give either the path of its library or its module.", ep=name
        )
    plugin_library = PluginLibrary(
        ep=name,
        distribution=distribution,
        module=module,
        # Another process may work in another folder.
        path=str(Path(library).absolute()) if library else "",
    )
    made = _make_class(plugin_library, tuple(options))
    (registry or default_registry).register(made)
    return made


def find_adapter(
    library: str | os.PathLike[str], registry: Registry
) -> PluginRecord | None:
    """Return the EP that uses a library, by its path; None where there is none."""
    for record in registry.records():
        if record.simulated or not (record.usable or record.undecided):
            continue
        try:
            cls = registry.load(record)
            if issubclass(cls, OnnxRuntimeProvider) and Path(
                cls.library.find_path()
            ).samefile(library):
                return record
        except (EpctxError, OSError) as error:
            _log.debug("%s has no library: %s", record.label, error)
    return None


def __getattr__(name: str) -> SimpleNamespace:
    """Return the classes of the EPs of a wheel, which entry points name by this.

    Args:
        name: the distribution's name with underscores.

    Raises:
        AttributeError: no such wheel is installed.
    """
    if name.startswith("onnxruntime"):
        distribution = name.replace("_", "-")
        infos = find_infos(sys.path, distribution.__eq__)
        wheel = read_wheels(infos, BUILDS).get(distribution)
        if wheel is not None:
            return SimpleNamespace(
                **{
                    ep: _make_class_of_wheel(ep, wheel.distribution, wheel.module)
                    for ep in wheel.eps
                }
            )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _make_class_of_wheel(
    ep: str, distribution: str, module: str
) -> type[OnnxRuntimeProvider]:
    """Return the class of an EP that was found in an installed wheel."""
    library = PluginLibrary(ep=ep, distribution=distribution, module=module)
    return _make_class(library, (ANY_OPTION,))


def _ask_name(distribution: str) -> str:
    """Return the name of the one EP of a wheel, by importing it."""
    library = PluginLibrary(
        ep=distribution,
        distribution=distribution,
        module=find_module(distribution),
    )
    names = library.list_eps()
    if len(names) > 1:
        raise InvalidArgument(
            f"{distribution} has several EPs: {', '.join(names)}.",
            hint=f'Name one: register_plugin_ep("{names[0]}", '
            f'distribution="{distribution}").',
        )
    return names[0]


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
