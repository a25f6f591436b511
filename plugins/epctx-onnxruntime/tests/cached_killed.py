"""Kills `load_or_compile`: `cached_killed.py KILLED MODEL CACHE FIRST LAST STEP`, with
the cache's own program for kills.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location

from cached_asking import asked
from cached_runtime import in_place

if __name__ == "__main__":
    spec = spec_from_file_location("killed", sys.argv[1])
    killed = module_from_spec(spec)
    spec.loader.exec_module(killed)
    in_place(setattr)
    killed.asked = asked
    killed.main(*sys.argv[2:])
