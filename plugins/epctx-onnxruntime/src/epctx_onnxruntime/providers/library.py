"""Libraries of plugin EPs: finding a vendor's package, registering its library with
onnxruntime, listing its devices.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import importlib_metadata

from epctx_core.errors import InvalidArgument, NotImplementedByProvider, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from epctx_onnxruntime.real import onnxruntime

_LOCK = threading.RLock()
"""Held while a library is registered, as the devices that are new then are its own."""


def register_library(name: str, path: str) -> list[onnxruntime.OrtEpDevice]:
    """Register a library with onnxruntime, and return the devices that it lists by this
    name: another registration of the same library may list EPs of the same name.

    Raises:
        Exception: onnxruntime's error.
    """
    from epctx_onnxruntime.real import onnxruntime

    with _LOCK:
        before = onnxruntime.get_ep_devices()
        onnxruntime.register_execution_provider_library(name, path)
        # The program around may register other libraries at the same time.
        return [
            device
            for device in onnxruntime.get_ep_devices()
            if device not in before
            and Path(device.ep_metadata.get("library_path", path)).name
            == Path(path).name
        ]


@dataclass(frozen=True, kw_only=True)
class PluginLibrary:
    """Library with one EP of onnxruntime.

    Args:
        ep: the EP's name in onnxruntime.
        distribution: the pip package that contains the library; empty for an EP inside
            onnxruntime, or with `path`.
        module: the import name of that package.
        path: the library, where no package tells it.
        devices: the only devices that it lists, for the message where it lists none.
        hint: advice where it lists none.
    """

    ep: str
    distribution: str = ""
    module: str = ""
    path: str = ""
    devices: str = ""
    hint: str = ""

    def list_devices(
        self, name: str | None = None
    ) -> Sequence[onnxruntime.OrtEpDevice]:
        """Return the devices that the EP can use on this machine; registers the library
        at the first call. An EP inside onnxruntime may have none.

        Args:
            name: under which the library is registered; None for one that the program
                around does not use. EPs write theirs into models, and do not load those
                of another one.

        Raises:
            NotImplementedByProvider: the package or its library is missing or does not
                load, or there is no device.
        """
        with _LOCK:
            devices = self._register(name)
        if not devices:
            self._check_devices()
        return devices

    def get_name(self, devices: Sequence[onnxruntime.OrtEpDevice]) -> str:
        """Return the EP's name in onnxruntime, given its devices."""
        return devices[0].ep_name if devices else self.ep

    def add_to(
        self,
        session_options: onnxruntime.SessionOptions,
        devices: Sequence[onnxruntime.OrtEpDevice],
        settings: Mapping[str, str],
    ) -> None:
        """Add the EP to options of a session, with some of its devices or, inside
        onnxruntime, none.

        Raises:
            InvalidArgument: onnxruntime or the EP refuses an option.
        """
        try:
            if devices:
                session_options.add_provider_for_devices(list(devices), dict(settings))
            else:
                session_options.add_provider(self.ep, dict(settings))
        except Exception as error:  # onnxruntime's exceptions have no base of their own
            raise InvalidArgument(
                f"onnxruntime does not add {self.ep} with the options "
                f"{', '.join(map(repr, settings)) or 'that it has by default'}: "
                f"{quote(error)}",
                ep=self.ep,
                hint="Check its options against the vendor's documentation.",
            ) from error

    def _check_devices(self) -> None:
        """Raise NotImplementedByProvider for an EP without a device; one inside
        onnxruntime needs none.
        """
        from epctx_onnxruntime.real import onnxruntime

        if not (self.path or self.module):
            if self.ep in onnxruntime.get_available_providers():
                return
            raise NotImplementedByProvider(
                f"the onnxruntime {onnxruntime.__version__} that is imported here has "
                f"no {self.ep} inside.",
                hint=f"`epctx doctor` says whether another build is over "
                f"{self.distribution or 'it'}.",
            )
        raise NotImplementedByProvider(
            f"the library of {self.ep} loads, but lists no device on this machine"
            + (f": it lists {self.devices}." if self.devices else "."),
            hint=self.hint
            or f"See which devices {self.distribution or self.path} supports, and "
            "their drivers.",
        )

    @staticmethod
    def list_registered(name: str) -> list[onnxruntime.OrtEpDevice]:
        """Return the devices of an EP that onnxruntime knows by this name."""
        from epctx_onnxruntime.real import onnxruntime

        return [d for d in onnxruntime.get_ep_devices() if d.ep_name == name]

    def _register(self, name: str | None) -> Sequence[onnxruntime.OrtEpDevice]:
        """Return the devices that the library lists, registered once by a name.

        Those of a library that the program around registers end when it takes that
        back, also if they are of the same EP: some libraries name it themselves.
        """
        from epctx_onnxruntime.real import onnxruntime

        if not (self.path or self.module):
            return self.list_registered(self.ep)  # The EP is inside onnxruntime.
        if failure := _FAILURES.get(self):
            raise NotImplementedByProvider(failure[0], hint=failure[1])
        path = self.find_path()
        key = name or f"epctx.{self.ep}", path
        if key in _REGISTERED:
            return _REGISTERED[key]

        # A program may register one copy of a library after another.
        others = sum(registered == key[0] for registered, _ in _REGISTERED)
        free = f"{key[0]}.{others}" if others and not name else key[0]
        try:
            listed = register_library(free, path)
        except Exception as error:  # onnxruntime's exceptions have no base of their own
            reason = (
                f"the library {Path(path).name} of {self.ep} does not load: "
                f"{quote(error)}"
            )
            hint = (
                f"Install a version of {self.distribution or 'it'} that fits "
                f"onnxruntime {onnxruntime.__version__}."
            )
            _FAILURES[self] = reason, hint
            raise NotImplementedByProvider(reason, hint=hint) from error
        _REGISTERED[key] = [d for d in listed if d.ep_name in (free, self.ep)]
        return _REGISTERED[key]

    def import_module(self) -> Any:
        """Import the vendor's package.

        Raises:
            NotImplementedByProvider: it is not installed, or cannot be imported.
        """
        try:
            return importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            if error.name != self.module.partition(".")[0]:
                raise self._make_error(error) from error
            raise NotImplementedByProvider(
                f"the package {self.distribution or self.module} of {self.ep} is not "
                "installed.",
                hint=f"pip install {self.distribution or self.module}",
            ) from error
        except Exception as error:
            raise self._make_error(error) from error

    def list_eps(self) -> list[str]:
        """Return the names of the EPs in the vendor's package, by whichever of their
        functions it has.

        Raises:
            NotImplementedByProvider: the package is missing or names none.
        """
        module = self.import_module()
        try:
            if (told := getattr(module, "get_ep_names", None)) is not None:
                names = list(told())
            else:
                names = [module.get_ep_name()]
        except Exception as error:
            raise self._make_error(error) from error
        if not names or not all(isinstance(name, str) for name in names):
            raise self._make_error(TypeError(f"its EP names are {names!r:.80}"))
        return names

    def _make_error(self, error: Exception) -> NotImplementedByProvider:
        return NotImplementedByProvider(
            f"the package {self.distribution or self.module} of {self.ep} cannot be "
            f"used: {type(error).__name__}: {quote(error)}",
            hint=f"Install {self.distribution or self.module} again.",
        )

    def find_path(self) -> str:
        """Return the path of the library, by whichever of their functions the vendor's
        package has.

        Raises:
            NotImplementedByProvider: the package does not tell it, or the file is
                missing.
        """
        path = self.path
        if not path:
            module = self.import_module()
            try:
                told = getattr(module, "get_library_path", None) or getattr(
                    module, "library_path", ""
                )
                path = str(told() if callable(told) else told)
            except Exception as error:
                raise self._make_error(error) from error
        if not path or not Path(path).is_file():
            where = f" at {path}" if path else ""
            raise NotImplementedByProvider(
                f"the library of {self.ep} is missing{where}.",
                hint=f"Install {self.distribution or 'the package that contains it'} "
                "again.",
            )
        return path

    @property
    def version(self) -> str:
        """The version of the vendor's package; that of onnxruntime for an EP inside it,
        empty where nobody tells.
        """
        from epctx_onnxruntime.real import onnxruntime

        if not self.distribution:
            return "" if self.path else onnxruntime.__version__
        try:
            return importlib_metadata.version(self.distribution)
        except importlib_metadata.PackageNotFoundError:
            return ""

    def identify(self) -> Mapping[str, str]:
        """Return facts that change where what the EP compiles may change: for keys of
        caches.

        They are the versions of onnxruntime and of the package, and SHA-256 of the
        library and of the package's list of files, which has their digests.

        Raises:
            NotImplementedByProvider: the library is missing.
        """
        from epctx_onnxruntime.real import onnxruntime

        facts = {
            "onnxruntime": onnxruntime.__version__,
            "package": f"{self.distribution} {self.version}".strip(),
        }
        if self.path or self.module:
            facts["library"] = digest_file(Path(self.find_path()))
        try:
            files = importlib_metadata.distribution(
                self.distribution or "onnxruntime"
            ).read_text("RECORD")
        except importlib_metadata.PackageNotFoundError:
            files = None
        facts["files"] = hashlib.sha256((files or "").encode()).hexdigest()
        return facts


_REGISTERED: dict[tuple[str, str], Sequence[onnxruntime.OrtEpDevice]] = {}
"""Devices of libraries by the names for which they are registered, and paths."""
_FAILURES: dict[PluginLibrary, tuple[str, str]] = {}
"""Reasons and hints of libraries that do not load: one that failed to load is not
loaded again in this process.
"""


def read_metadata(device: onnxruntime.OrtEpDevice) -> dict[str, str]:
    """Return what onnxruntime and the EP say of a device."""
    return {**dict(device.device.metadata), **dict(device.ep_metadata)}


def describe_target(device: onnxruntime.OrtEpDevice) -> dict[str, str]:
    """Return `target`, the name of a device, and `driver`, the version of its driver,
    empty where nobody tells.
    """
    hardware = device.device
    drivers = [
        value
        for key, value in sorted(read_metadata(device).items())
        if "driver" in key.lower()
    ]
    name = f"{hardware.type.name} {hardware.vendor} {hardware.device_id:#x}"
    return {"target": name, "driver": next(iter(drivers), "")}


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal; read again once its size or time has
    changed.
    """
    state = path.stat()
    return _digest(path, state.st_size, state.st_mtime_ns)


@cache
def _digest(path: Path, _size: int, _mtime: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_named_files(texts: Iterable[str]) -> str:
    """Return a digest of the content of files that texts name, alone or between commas
    and colons; empty where they name none.
    """
    parts = [
        part
        for text in texts
        for part in dict.fromkeys((text, *re.split("[,:]", text)))
    ]
    # Not `Path.is_file`, which raises for long texts that are no paths.
    digests = [digest_file(Path(part)) for part in parts if os.path.isfile(part)]  # noqa: PTH113
    return hashlib.sha256("".join(digests).encode()).hexdigest() if digests else ""
