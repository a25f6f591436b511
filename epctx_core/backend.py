"""ONNX's backend interface over epctx: the module `epctx_campaigns.backend` of the
package epctx-campaigns.
"""

import sys
from typing import TYPE_CHECKING

from epctx_core.forwarding import import_installed

if TYPE_CHECKING:
    from epctx_campaigns.backend import *

sys.modules[__name__] = import_installed("epctx_campaigns.backend", needed_by=__name__)
