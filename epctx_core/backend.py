"""ONNX's backend interface over epctx: the module `epctx_conformance.backend` of the
package epctx-conformance.
"""

import sys
from typing import TYPE_CHECKING

from epctx_core.forwarding import import_installed

if TYPE_CHECKING:
    from epctx_conformance.backend import *

sys.modules[__name__] = import_installed(
    "epctx_conformance.backend", needed_by=__name__
)
