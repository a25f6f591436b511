"""An EP whose module does harm by being imported; at the latest a child process shows
it.
"""

from __future__ import annotations

import logging
import os

from support.honest_ep import HonestProvider

os.environ["ACME_HOME"] = "/opt/acme"
logging.getLogger().setLevel(logging.DEBUG)


class ChangesTheHostAtImport(HonestProvider):
    """Honest but for its module."""

    name = "ChangesTheHostAtImportExecutionProvider"
