"""Path of the library of custom operators that onnxruntime-extensions contains."""

from __future__ import annotations

import os
from unittest.mock import patch

# The package sets protobuf's implementation for all child processes to the one in
# Python.
with patch.dict(os.environ):
    import onnxruntime_extensions

LIBRARY: str = onnxruntime_extensions.get_library_path()
