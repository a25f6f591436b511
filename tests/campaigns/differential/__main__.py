"""`make differential`: tries each behaviour on onnxruntime and on epctx, and compares
with the document's table.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.extend(map(str, Path(__file__).parents[1:3]))

from differential.comparing import main

sys.exit(main())
