"""The context model that a session writes beside running it: `ep.context_enable=1`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_core.compiling.compile import Compile, CompileRequest
from epctx_core.compiling.destination import Destination, destination_of
from epctx_core.compiling.initializers import placement_of
from epctx_core.errors import errors_typed
from epctx_core.sessions.compile_host import path_of

if TYPE_CHECKING:
    import os

    from epctx_core.graph.model_io import SourceModel
    from epctx_core.options import SessionOptions
    from epctx_core.registry import Registry


@errors_typed("loading the model")
def session_export(
    model: str | os.PathLike[str] | bytes, session: SessionOptions, registry: Registry
) -> Compile:
    """Return what writes the context model of a session; never over one that exists, as in ONNX Runtime.

    Args:
        model: what the session runs, a path or bytes.
        session: the session's options.
        registry: where EPs are looked up.

    Raises:
        InvalidArgument: options that contradict a share group, or an output path that names a folder.
        Fail: the context model exists, or the system refuses its path.
    """
    config = session.config()

    def destination(_source: SourceModel | None, _has_payloads: bool) -> Destination:
        return destination_of(
            path_of(model),
            config.context_file_path,
            replace=False,
            initializers=config.external_initializers_file,
        )

    export = Compile(
        CompileRequest(
            session=session,
            model=model,
            find_destination=destination,
            embedded=config.embed,
            placement=placement_of(None, 0, None, config.external_initializers_file),
            registry=registry,
            plain=False,
        )
    )
    export.check_place(has_payloads=True)
    return export
