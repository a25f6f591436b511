"""The drop-in in place of onnxruntime, for programs that import it.

`import onnxruntime` then gives the drop-in, in this process and from then on. Modules
within onnxruntime (quantization, transformers, tools) still work on the real one: each
gets an `__import__` of its own, so that nothing is swapped while other threads import.
"""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from epctx_core import SessionOptions, default_registry
from epctx_core.errors import InvalidArgument
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


class _FinderWithin(MetaPathFinder):
    """Finds modules within onnxruntime, and has them import the real package."""

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
            # Also for the imports within functions, whenever they are called.
            vars(module)["__builtins__"] = {
                **vars(builtins),
                "__import__": _import_within,
            }
            execute(module)

        loader.exec_module = execute_within
        return spec


def _import_within(
    name: str,
    globals: Mapping[str, object] | None = None,  # noqa: A002 - `__import__`'s names
    locals: Mapping[str, object] | None = None,  # noqa: A002
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """Import as `__import__` does, with the real onnxruntime as onnxruntime."""
    if level or name.partition(".")[0] != _NAME:
        return __import__(name, globals, locals, fromlist or (), level)

    # Modules below are the same for all; the real package has to have them, too.
    parent = _REAL[_NAME]
    path = _NAME
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        module = _REAL.get(path) or import_module(path)
        setattr(parent, part, module)
        parent = module
    if not fromlist:
        return _REAL[_NAME]
    for part in fromlist:
        if part != "*" and not hasattr(parent, part):
            setattr(parent, part, import_module(f"{path}.{part}"))
    return parent


def install(
    providers: Sequence[str] = (), free_dimensions: Mapping[str, int] | None = None
) -> ModuleType:
    """Put the drop-in in the place of onnxruntime in this process; return it.

    Modules that have imported onnxruntime before keep it.

    Args:
        providers: EPs that sessions use before those that the program names: most
            programs name the CPU alone, which loads no context model. Those of the last
            call count.
        free_dimensions: lengths of open dimensions by name, such as `{"height": 224}`,
            for sessions of all models whose inputs have them; of the last call, too.

    Raises:
        InvalidArgument: no such EP is installed, the EPs are not a list, or a length is
            not a whole number.
        PluginError: the plugin of an EP cannot be used.
    """
    from epctx_onnxruntime.drop_in import sessions

    if not isinstance(providers, (list, tuple)) or not all(
        isinstance(name, str) for name in providers
    ):
        raise InvalidArgument(
            f"install takes a list of EP names, not {providers!r:.80}.",
            hint='Write install(["QNN"]); options of an EP belong to the session.',
        )
    names = list(providers)
    for name in names:
        # A session would raise the same, but somewhere within the program.
        default_registry.resolve(name)

    lengths = dict(free_dimensions or {})
    for name, length in lengths.items():
        SessionOptions().add_free_dimension_override_by_name(name, length)

    sessions.first_providers[:] = names
    sessions.free_dimensions.clear()
    sessions.free_dimensions.update(lengths)
    with _LOCK:
        drop_in = sys.modules[_PACKAGE]
        if sys.modules.get(_NAME) is drop_in:
            return drop_in
        sys.meta_path.insert(0, _FinderWithin())
        sys.modules[_NAME] = drop_in
        collection = ModuleType(_COLLECTION)
        vars(collection).update(vars(sys.modules[_COLLECTION]))
        vars(collection).update({name: getattr(drop_in, name) for name in _OURS})
        sys.modules[_COLLECTION] = collection
        onnxruntime.capi.onnxruntime_inference_collection = collection
        return drop_in


def uninstall() -> None:
    """Put onnxruntime back in its place; modules that imported the drop-in keep it."""
    from epctx_onnxruntime.drop_in import sessions

    sessions.first_providers.clear()
    sessions.free_dimensions.clear()
    with _LOCK:
        sys.modules.update(_REAL)
        onnxruntime.capi.onnxruntime_inference_collection = _REAL[_COLLECTION]
        sys.meta_path[:] = [
            finder for finder in sys.meta_path if not isinstance(finder, _FinderWithin)
        ]
