"""Compiles pairs again and again, or looks at them all the time: a program that `test_kills.py` drives.

`in_other_processes.py compile SCENE FOLDER` makes a harness's pairs and says `ready`. It then reads one order a
line, as `compile_again.py` has them (`time SECONDS WHICH`, `call N WHICH`, `whole - WHICH`), and answers each.

`in_other_processes.py watch SCENE FOLDER` loads what it finds, says `ready`, and loads again until its input ends
and once after that; then it prints one line of JSON: how often each state was found, and all that went wrong.
"""

from __future__ import annotations

import json
import select
import sys
from collections import Counter
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from end_to_end.compile_again import ordered, tell
from faults.pairs import HARNESSES, OLD


def compile_when_told(harness: str, folder: Path) -> None:
    """Make the pairs, and compile one in a child for each order."""
    pairs = HARNESSES[harness](folder)
    pairs.compile(OLD)  # imports what children would each import
    tell("ready")
    for order in sys.stdin:
        kind, amount, which = order.split()
        tell(*ordered(kind, amount, partial(pairs.compile, int(which))))


def watch(harness: str, folder: Path) -> None:
    """Load until the input ends; say what was found."""
    pairs = HARNESSES[harness](folder)
    found = Counter(map(str, pairs.loaded()))
    problems = []
    tell("ready")
    ended = False
    while not ended:
        ended = bool(select.select([sys.stdin], [], [], 0)[0])
        try:
            found.update(map(str, pairs.loaded()))
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is what is looked for
            problems.append(repr(error)[:500])
    tell(json.dumps({"found": found, "problems": problems}))


if __name__ == "__main__":
    {"compile": compile_when_told, "watch": watch}[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
