"""Base of objects with the attributes of onnxruntime's Python API.

Using or setting an attribute that epctx does not have is an error. One without an
effect is accepted and logged once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from epctx_core.errors import InvalidArgument, PackageMissing, suggestion
from epctx_core.forwarding import import_installed

MEMORY = "onnxruntime and the EPs manage the memory of runs"
THREADS = (
    "intra_op_num_threads and the size of each group of nodes determine its threads"
)
_LOG = "logging is Python's: the logger 'epctx' and its levels"

CHECKED: Mapping[str, Mapping[str, tuple[bool | int | str, str]]] = {
    "SessionOptions": {
        "enable_cpu_mem_arena": (True, MEMORY),
        "enable_mem_pattern": (True, MEMORY),
        "enable_mem_reuse": (True, MEMORY),
        "enable_profiling": (False, ""),
        "log_verbosity_level": (0, _LOG),
        "logid": ("", _LOG),
        "profile_file_prefix": ("onnxruntime_profile_", ""),
        "use_deterministic_compute": (False, "the CPU EP computes as its engine does"),
        "use_per_session_threads": (True, THREADS),
    },
    "RunOptions": {
        "log_severity_level": (-1, _LOG),
        "log_verbosity_level": (0, _LOG),
        "only_execute_path_to_fetches": (False, "a run computes what all outputs need"),
    },
}
"""Class and attribute to its default, whose type another value has, and the reason why
that has no effect; empty if it has one.
"""

_log = logging.getLogger("epctx.options")
_logged: set[str] = set()


def log_without_effect(setting: str, reason: str) -> None:
    """Log, once in a process, that a setting is accepted and has no effect."""
    if setting not in _logged:
        _logged.add(setting)
        _log.info("%s is accepted and has no effect: %s.", setting, reason)


class UnsupportedNameError(InvalidArgument, AttributeError):
    """A name that epctx does not have; an AttributeError too, so that `hasattr`
    works.
    """


GONE: Mapping[str, str] = dict.fromkeys(
    ("add_graph_transformer", "graph_transformers", "session.graph_transformers"),
    "A host plugin with the hook transform_model changes models: see "
    "`SessionOptions.add_host_plugin`, `--host-plugin` and `epctx docs "
    "graph-transformers`.",
)
"""Advice for names that there were before API 1 was released."""


def missing_attribute_error(
    owner: str, name: str, attributes: Iterable[str]
) -> UnsupportedNameError:
    """Return the error for a name that a class or module does not have."""
    try:
        names = import_installed(
            "epctx_onnxruntime.drop_in.names", needed_by="a name of onnxruntime"
        )
    except PackageMissing as missing:
        hint = f"epctx-onnxruntime has all names of onnxruntime: {missing.hint}"
    else:
        hint = "More: `epctx docs differences-from-onnxruntime`."
        if reason := names.explain(name):
            # Many are a little like a name of ours that does something else.
            return UnsupportedNameError(
                f"{owner} has no attribute {name!r} of onnxruntime: {reason}.",
                hint=hint,
            )

    close = suggestion(name, [n for n in attributes if n[0] != "_"], cutoff=0.8)
    return UnsupportedNameError(
        f"{owner} has no attribute {name!r}.{close}", hint=GONE.get(name, hint)
    )


class Strict:
    """Base of objects that refuse to get or set an attribute that they do not have."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise missing_attribute_error(type(self).__name__, name, dir(type(self)))

    def __setattr__(self, name: str, value: object) -> None:
        for cls in type(self).__mro__:
            if name in (table := CHECKED.get(cls.__name__, {})):
                default, why = table[name]
                if not isinstance(value, int if isinstance(default, int) else str):
                    raise InvalidArgument(
                        f"{cls.__name__}.{name} must be of type "
                        f"{type(default).__name__}, not {value!r:.80}."
                    )
                if why and value != default:
                    log_without_effect(f"{cls.__name__}.{name}", why)
        try:
            object.__setattr__(self, name, value)
        except AttributeError:
            raise missing_attribute_error(
                type(self).__name__, name, dir(type(self))
            ) from None
