"""The drop-in in place of onnxruntime, for programs that import it.

`import onnxruntime` then gives the drop-in, in this process and from then on. Modules
within onnxruntime (quantization, transformers, tools) still work on the real one, and
so does epctx: they import it, while they are loaded, in its place.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from epctx_onnxruntime.real import onnxruntime

_NAME = "onnxruntime"
_PACKAGE = "epctx_onnxruntime"
_COLLECTION = f"{_NAME}.capi.onnxruntime_inference_collection"
_REAL: dict[str, ModuleType] = {
    _NAME: onnxruntime,
    _COLLECTION: onnxruntime.capi.onnxruntime_inference_collection,
}
_LOCK = threading.RLock()
_OURS = ("IOBinding", "InferenceSession", "ModelCompiler")
"""Classes that programs also take from the module in `capi` that defines them."""


class _RealWithin(MetaPathFinder):
    """Loads modules within onnxruntime while the real package is in place."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{_NAME}."):
            return None
        if fullname.count(".") == 1:
            path = onnxruntime.__path__
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_within(module: ModuleType) -> None:
            with _real_in_place():
                execute(module)

        loader.exec_module = execute_within
        return spec


@contextmanager
def _real_in_place() -> Iterator[None]:
    with _LOCK:
        replaced = {name: sys.modules[name] for name in _REAL}
        sys.modules.update(_REAL)
        try:
            yield
        finally:
            sys.modules.update(replaced)


def install(providers: Sequence[str] = ()) -> ModuleType:
    """Put the drop-in in the place of onnxruntime in this process; return it.

    Modules that have imported onnxruntime before keep it.

    Args:
        providers: EPs that sessions use before those that the program names: most
            programs name the CPU alone, which loads no context model. Those of the last
            call count.
    """
    from epctx_onnxruntime.drop_in import sessions

    sessions.first_providers[:] = providers
    with _LOCK:
        drop_in = sys.modules[_PACKAGE]
        if sys.modules.get(_NAME) is drop_in:
            return drop_in
        sys.meta_path.insert(0, _RealWithin())
        sys.modules[_NAME] = drop_in
        collection = ModuleType(_COLLECTION)
        vars(collection).update(vars(sys.modules[_COLLECTION]))
        vars(collection).update({name: getattr(drop_in, name) for name in _OURS})
        sys.modules[_COLLECTION] = collection
        return drop_in


def uninstall() -> None:
    """Put onnxruntime back in its place; modules that imported the drop-in keep it."""
    from epctx_onnxruntime.drop_in import sessions

    sessions.first_providers.clear()
    with _LOCK:
        sys.modules.update(_REAL)
        sys.meta_path[:] = [
            finder for finder in sys.meta_path if not isinstance(finder, _RealWithin)
        ]
