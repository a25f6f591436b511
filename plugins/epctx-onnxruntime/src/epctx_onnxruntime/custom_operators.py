"""Libraries of custom operators that a host registered, such as that of
onnxruntime-extensions.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from epctx_core.errors import Fail
from epctx_onnxruntime.graphs import all_graphs
from epctx_onnxruntime.newest_versions import load_structure, make_probe
from epctx_onnxruntime.versions import quiet_options

if TYPE_CHECKING:
    from onnx import ModelProto

    from epctx_onnxruntime.real import onnxruntime


_ALWAYS_KNOWN = frozenset(
    {
        "",
        "ai.onnx",
        "ai.onnx.ml",
        "ai.onnx.preview",
        "ai.onnx.preview.training",
        "ai.onnx.training",
        "com.microsoft",
    }
)
_UNKNOWN = "is not a registered function/op"
"""Words of onnxruntime's error for an operator without a schema."""


def register_libraries(
    options: onnxruntime.SessionOptions, libraries: Iterable[str]
) -> None:
    """Register libraries in the options of a session.

    Raises:
        Fail: onnxruntime cannot load one.
    """
    for path in libraries:
        try:
            options.register_custom_ops_library(path)
        except Exception as error:  # onnxruntime's exceptions have no base of their own
            raise Fail(
                "onnxruntime cannot register the library of custom operators "
                f"{path!r}: {' '.join(str(error).split())}",
                path=path,
                hint=(
                    "It must be a shared library for this platform that exports "
                    "RegisterCustomOps, such as "
                    "onnxruntime_extensions.get_library_path()."
                ),
            ) from error


@cache
def check_libraries(libraries: tuple[str, ...]) -> onnxruntime.SessionOptions:
    """Check that libraries can be used together; once in a process, which keeps them
    loaded from then on.

    Raises:
        Fail: one cannot be loaded, or two have an operator in common.
    """
    options = quiet_options()
    register_libraries(options, libraries)
    if not libraries:
        return options
    try:
        load_structure(make_probe(), options)
    except Exception as error:
        raise Fail(
            "onnxruntime cannot use the libraries of custom operators "
            f"{', '.join(map(repr, libraries))} together: "
            f"{' '.join(str(error).split())}",
            hint="Register one library for each operator.",
        ) from error
    return options


def find_libraries(
    model: ModelProto, skipped: Container[tuple[str, str]], libraries: Sequence[str]
) -> dict[str, str]:
    """Return the libraries of a model's custom operators by domain; see
    `BaseEngine.find_libraries`.
    """
    imports = {opset.domain: opset.version for opset in model.opset_import}
    nodes = (node for _, graph in all_graphs(model.graph) for node in graph.node)
    operators = {
        (node.domain, node.op_type)
        for node in nodes
        if node.domain not in _ALWAYS_KNOWN
    }
    functions = {(function.domain, function.name) for function in model.functions}
    library_paths: dict[str, str] = {}
    for domain, op_type in sorted(
        each for each in operators - functions if each not in skipped
    ):
        if not _is_known(domain, imports.get(domain, 1), op_type, ()):
            paths = (
                path
                for path in libraries
                if _is_known(domain, imports.get(domain, 1), op_type, (path,))
            )
            library_paths[domain] = next(paths, library_paths.get(domain, ""))
    return library_paths


def _is_known(
    domain: str, version: int, op_type: str, libraries: tuple[str, ...]
) -> bool:
    """Return whether onnxruntime has a schema of an operator: any other fault of a
    model is found after that.
    """
    probe = make_probe({domain: version})
    node = probe.graph.node[0]
    node.domain, node.op_type = domain, op_type
    # It may want another rank, and gives whatever it gives.
    probe.graph.input[0].type.tensor_type.ClearField("shape")
    probe.graph.output[0].ClearField("type")
    try:
        load_structure(probe, check_libraries(libraries))
    except Fail:
        raise
    except Exception as error:  # noqa: BLE001 - onnxruntime's exception classes have no base of their own
        return _UNKNOWN not in str(error)
    return True
