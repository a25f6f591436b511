"""Costs of the main cases, in counts rather than seconds: a regression fails on any
machine.

The network has two weights of 36 MiB in a file, two partitions for QNN and a node for
the CPU EP. Bytes read, written and copied are in units of those weights, to the half: 0
means that no weight byte was touched by a call or lies in memory of its own. Each case
runs in a fresh process, imports done.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from models import count_case
from models.count_case import BINARY, CONTEXT, DATA, INLINE, SOURCE

pytestmark = pytest.mark.internal

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/io").exists(), reason="bytes are counted on Linux only"
)


class Counts(NamedTuple):
    """One row.

    Attributes:
        read, written: bytes that passed through calls.
        copied: the most memory taken at a time, in Python or by engines.
        opens, mappings: files of the model by name, how often.
        engines: onnxruntime sessions made for a part of a model.
        hooks: calls by name.
    """

    read: float = 0
    written: float = 0
    copied: float = 0
    opens: dict[str, int] = {}  # noqa: RUF012 - rows are not changed
    mappings: dict[str, int] = {}  # noqa: RUF012
    engines: int = 0
    hooks: dict[str, int] = {}  # noqa: RUF012


def once(*names: str) -> dict[str, int]:
    return dict.fromkeys(names, 1)


# The instance that reads back what was written is shut down, too.
EXPORT = {
    **once("get_capability", "compile", "get_ep_context_nodes", "load_context"),
    "shutdown": 2,
}

# A file that is written is opened to be staged, to be written out and to be moved.
CASES = {
    "compile to a file": Counts(
        written=1, opens={**once(SOURCE, DATA), CONTEXT: 3, BINARY: 3},
        mappings=once(DATA, BINARY), hooks=EXPORT
    ),
    "compile embedded": Counts(
        written=1, copied=1, opens={**once(SOURCE, DATA), CONTEXT: 3},
        mappings=once(DATA), hooks=EXPORT
    ),
    "session from source": Counts(
        opens=once(SOURCE, DATA), mappings=once(DATA), engines=3,
        hooks=once("get_capability", "compile")
    ),
    "session from a file": Counts(
        opens=once(CONTEXT, BINARY), mappings=once(BINARY), engines=3,
        hooks=once("load_context")
    ),
    "session embedded": Counts(
        read=1, copied=1, opens=once(CONTEXT), engines=3, hooks=once("load_context")
    ),
    "session without an EP": Counts(read=1, copied=1, opens=once(INLINE)),
    "run from source": Counts(),
    "run from a file": Counts(),
    "run embedded": Counts(),
}  # fmt: skip


@pytest.fixture(scope="module")
def counts(tmp_path_factory):
    """Cost of each case: the compile first, into a folder of its own, then the others
    on its output.
    """
    folders = {
        embedded: tmp_path_factory.mktemp("counts") for embedded in (False, True)
    }
    for folder in folders.values():
        count_case.write_networks(folder)
    return {case: measured(case, folders["embedded" in case]) for case in CASES}


def measured(case: str, folder: Path) -> dict[str, Any]:
    script = str(Path(count_case.__file__))
    output = subprocess.check_output(
        [sys.executable, script, case, str(folder)], text=True, timeout=120
    )
    counts: dict[str, Any] = json.loads(output)
    return counts


@pytest.mark.parametrize("case", CASES)
def test_a_case_costs_what_the_table_says(counts, case):
    assert counts[case] == CASES[case]._asdict()
