"""Options of a host: session options by key and by value, and (in `run`) options of a
run.

Names, arguments and meanings are ONNX Runtime's.
"""

from __future__ import annotations

from epctx_core.options.choices import *
from epctx_core.options.session_options import *
from epctx_core.options.table import *
