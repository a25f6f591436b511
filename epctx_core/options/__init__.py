"""What a host asks for: session options by their keys and by value, and (in `run`) the options of a run.

Names, arguments and meanings are ONNX Runtime's; what of them epctx does not have is a table (`unsupported`).
"""

from __future__ import annotations

from epctx_core.options.choices import *
from epctx_core.options.session_options import *
from epctx_core.options.table import *
