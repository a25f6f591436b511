"""EP that is checked: in a library, in onnxruntime or among installed plugins, and
found again by child processes.

A class that is made here is an attribute of this module in each process whose
environment has `VARIABLE`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from importlib_metadata import PackageNotFoundError, version

from epctx_core import default_registry
from epctx_core.errors import InvalidArgument, NotImplementedByProvider, suggestion
from epctx_core.plugin import ProviderOption, Purpose
from epctx_onnxruntime.providers import openvino, qnn
from epctx_onnxruntime.providers.base import OnnxRuntimeProvider
from epctx_onnxruntime.providers.library import PluginLibrary

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider

CASES = "epctx_conformance.cases.onnx_cases:load_cases"
"""ONNX's own."""
VARIABLE = "EPCTX_CHECKED_EP"
"""Environment variable with the subject as JSON."""
CPU = "CPUExecutionProvider"
_SUFFIX = "ExecutionProvider"
_PACKAGES = ("epctx-core", "epctx-onnxruntime", "onnx", "onnxruntime", "numpy")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """EP that is checked.

    Attributes:
        ep: its name in onnxruntime, or that of an installed EP of epctx, with or
            without `ExecutionProvider`.
        library: path of the library that contains it; empty for one that is built in or
            installed.
        options: the EP's, as text.
        tolerance: largest difference that passes where a case's own tolerance does not,
            as a share of the largest expected number.
        without: abilities of `Requirements` that it lacks.
        cases: `module:function` that returns the cases by name.
    """

    ep: str
    library: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    tolerance: float = 0.0
    without: tuple[str, ...] = ()
    cases: str = CASES

    @property
    def provider(self) -> type[ExecutionProvider]:
        """The EP's class, the same one each time.

        Raises:
            NotImplementedByProvider: no library, no built-in EP and no plugin has the
                name.
        """
        return _find_provider(self.ep, self.library)

    @property
    def plugin(self) -> Any:
        """The `PluginLibrary` of an EP that onnxruntime runs, else None."""
        library = getattr(self.provider, "library", None)
        return library if hasattr(library, "list_devices") else None

    def typed_options(self) -> dict[str, Any]:
        """Return all of the EP's options, checked.

        Raises:
            InvalidArgument: one is unknown or malformed.
        """
        provider_options = {option.name: option for option in self.provider.options}
        others = self.options if provider_options.pop("*", None) else {}
        for unknown in self.options.keys() - provider_options.keys() - others.keys():
            raise InvalidArgument(
                f"{self.provider.name} has no option "
                f"{unknown!r}.{suggestion(unknown, provider_options)}",
                ep=self.provider.name,
                hint=f"Its options: {', '.join(sorted(provider_options)) or 'none'}.",
            )
        name = self.provider.name
        typed = {
            key: option.parse(name, self.options[key])
            if key in self.options
            else option.default
            for key, option in provider_options.items()
        }
        return {**others, **typed}

    def describe(self) -> dict[str, str]:
        """Return where results come from: versions, digest of the library, device,
        machine.

        Raises:
            NotImplementedByProvider: the EP cannot be used on this machine.
        """
        provider = self.provider
        options = self.typed_options()
        availability = provider.availability(Purpose.RUN)
        if not availability:
            raise NotImplementedByProvider(
                f"{provider.name} cannot be used here: {availability.reason}",
                ep=provider.name,
                hint=availability.hint or None,
            )
        info = provider.get_build_info(options)
        facts = {
            "vendor": provider.vendor,
            "sdk": info.sdk,
            "device": info.target,
            "driver": info.driver,
        }
        facts["simulated"] = "yes" if provider.simulated else ""
        facts |= {name: _find_version(name) for name in _PACKAGES}
        facts |= {
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}",
        }
        return {name: text for name, text in facts.items() if text}

    def compute_fingerprint(self) -> str:
        """Return a digest of the EP, its options and all versions: results of another
        one do not count.
        """
        facts = json.dumps([asdict(self), self.describe()], sort_keys=True)
        return hashlib.sha256(facts.encode()).hexdigest()[:8]

    @contextmanager
    def published(self, fingerprint: str) -> Iterator[None]:
        """Let child processes that start meanwhile find this subject and its
        fingerprint.
        """
        os.environ[VARIABLE] = json.dumps([asdict(self), fingerprint])
        try:
            yield
        finally:
            del os.environ[VARIABLE]


def find_subject() -> tuple[Subject, str]:
    """Return the subject of the process that started this one, and its fingerprint."""
    fields, fingerprint = json.loads(os.environ[VARIABLE])
    return Subject(**{**fields, "without": tuple(fields["without"])}), fingerprint


def _find_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


@cache
def _find_provider(ep: str, library: str) -> type[ExecutionProvider]:
    if library or ep in {CPU, CPU.removesuffix(_SUFFIX)}:
        return _make_provider(ep, library)
    return default_registry.load(default_registry.resolve(ep))


def _make_provider(ep: str, library: str) -> type[ExecutionProvider]:
    """Return a class over a library, or over an EP inside onnxruntime; a vendor's own
    class where there is one.
    """
    full = ep if ep.endswith(_SUFFIX) else ep + _SUFFIX
    if library and full != ep and _load_known(full) is None:
        full = _complete_name((full, ep), library)
    vendor_class = _load_known(full)
    if vendor_class is not None:
        members: dict[str, Any] = {
            "library": replace(vendor_class.library, path=library)
        }
    else:
        # The name of the CPU EP is epctx's own.
        name = f"Ort{full}" if full == CPU else full
        members = {
            "name": name,
            "vendor": library or "onnxruntime",
            "library": PluginLibrary(ep=full, path=library),
            "options": (ProviderOption("*", str, default=None, doc="As given."),),
        }
    made: type[ExecutionProvider] = type(
        full,
        (vendor_class or OnnxRuntimeProvider,),
        {**members, "__module__": __name__},
    )
    return made


def _complete_name(names: tuple[str, ...], library: str) -> str:
    """Return the first of two names by which a library lists devices: not all EPs end
    in `ExecutionProvider`.
    """
    for name in names:
        with suppress(NotImplementedByProvider):
            PluginLibrary(ep=name, path=library).list_devices()
            return name
    return names[0]


def _load_known(ep: str) -> Any:
    """Return the class for a vendor's EP, or None."""
    classes = (qnn.QNNExecutionProvider, openvino.OpenVINOExecutionProvider)
    return next((cls for cls in classes if cls.name == ep), None)


def __getattr__(name: str) -> Any:
    """Return the class of this process's subject by its name."""
    if VARIABLE in os.environ and not name.startswith("_"):
        provider = find_subject()[0].provider
        if provider.__name__ == name and provider.__module__ == __name__:
            return provider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
