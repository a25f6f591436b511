"""EPs of epctx inside an unmodified onnxruntime.

`register()` offers them to the onnxruntime of this process. Hosts in other languages
register the library at `get_library_path()` themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

_LIBRARY = Path(__file__).with_name("libonnxruntime_ep_epctx.so")
_BUILT_IN = (
    "QNNExecutionProvider",
    "OpenVINOExecutionProvider",
    "VitisAIExecutionProvider",
)
"""Names by which onnxruntime looks for EPs of its own first, and finds none."""
_log = logging.getLogger("epctx.onnxruntime")

__all__ = [
    "get_ep_name",
    "get_ep_names",
    "get_library_path",
    "last_error",
    "register",
]


def get_library_path() -> str:
    """Return the path of the library that onnxruntime registers.

    Raises:
        NoSuchFile: this installation has none.
    """
    if not _LIBRARY.is_file():
        from epctx_core.errors import NoSuchFile

        raise NoSuchFile(
            "onnxruntime-ep-epctx was installed without its library, as there was no C "
            "compiler.",
            path=_LIBRARY,
            hint="Install a wheel, or a compiler such as gcc, and then this package "
            "again.",
        )
    return str(_LIBRARY)


def get_ep_names() -> list[str]:
    """Return the names of the EPs that are offered; import none of them."""
    from onnxruntime_ep_epctx.library import list_records

    return list(dict.fromkeys(record.name for record in list_records()))


def get_ep_name() -> str:
    """Return the name of the first EP that is offered.

    Raises:
        IndexError: no EP is installed.
    """
    return get_ep_names()[0]


def register(names: Iterable[str] | None = None) -> list[str]:
    """Offer EPs to the onnxruntime of this process; return their names.

    Each is registered under a name of its own, `epctx.<EP>`, as onnxruntime takes four
    EPs of one registration. Those that are registered already stay as they are.

    Args:
        names: the EPs, `X` for `XExecutionProvider`; None for all.

    Raises:
        InvalidArgument: no such EP is installed.
        NoSuchFile: see `get_library_path`.
        Fail: onnxruntime's, for an EP that was named and is broken. Otherwise those
            that are broken are logged, and `last_error` has the reason.
    """
    import onnxruntime

    from epctx_core import default_registry
    from onnxruntime_ep_epctx.library import REGISTRATION, list_records, load_records

    path = get_library_path()
    if names is None:
        eps = [record.name for record, _ in load_records(list_records())]
    else:
        eps = [default_registry.resolve(name).name for name in names]
    registered = {
        device.ep_name
        for device in onnxruntime.get_ep_devices()
        if device.ep_metadata.get("library_path") == path
    }
    offered = []
    for ep in eps:
        if ep in _BUILT_IN:
            _log.warning(
                "choose %s by its devices: by its name alone onnxruntime looks for an "
                "EP of its own, and runs the model on the CPU",
                ep,
            )
        try:
            if ep not in registered:
                onnxruntime.register_execution_provider_library(
                    f"{REGISTRATION}{ep}", path
                )
                registered.add(ep)
        except Exception as error:
            if names is not None:
                raise
            _log.warning("%s is not offered to onnxruntime: %s", ep, error)
        else:
            offered.append(ep)
    return offered


def last_error() -> BaseException | None:
    """Return the last exception of an EP that onnxruntime got as a status; None if
    there was none.

    onnxruntime goes on without an EP in some cases, and then this is the only trace.
    Its traceback is a note, as frames would keep the host's sessions alive.
    """
    from onnxruntime_ep_epctx.library import bridge

    return bridge.last_error
