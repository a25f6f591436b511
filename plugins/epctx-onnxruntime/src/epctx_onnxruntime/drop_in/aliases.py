"""Packages within onnxruntime under the drop-in's name, such as
`epctx_onnxruntime.capi`: the same module objects.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import epctx_onnxruntime.real  # noqa: F401 - imports onnxruntime without telemetry
from epctx_onnxruntime.drop_in.names import SUBPACKAGES

_NAME = "onnxruntime"
_PACKAGE = "epctx_onnxruntime"


class _Alias(MetaPathFinder, Loader):
    """Finds `epctx_onnxruntime.capi` and the like: the modules within onnxruntime under
    the drop-in's name.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - importlib's signature
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        package, _, rest = fullname.partition(".")
        if package == _PACKAGE and rest.partition(".")[0] in SUBPACKAGES:
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> None:  # noqa: ARG002
        return None

    def exec_module(self, module: ModuleType) -> None:
        # importlib takes what is there afterwards.
        stand_for(module.__name__)


def stand_for(name: str) -> None:
    """Replace a module of the drop-in, while it is imported, by that of onnxruntime;
    modules below it are found likewise.
    """
    # Before the finder of paths, which would load them a second time.
    if not any(isinstance(finder, _Alias) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Alias())
    sys.modules[name] = import_module(name.replace(_PACKAGE, _NAME, 1))
