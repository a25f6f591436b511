"""The notebooks of the documentation show what their cells give."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from copy import deepcopy

import nbformat
import pytest
from documentation.notebooks import MEASURED, NOTEBOOKS, compare
from support.folders import IMPORTED, TESTS
from support.pages import DOCS

TABLE = (
    "<table><tr><th>ep</th><th>bytes</th></tr><tr><td>QNN</td><td>{}</td></tr></table>"
)


def show(output, *tags):
    """Return the cells of a notebook with one output."""
    return [
        {"cell_type": "code", "metadata": {"tags": list(tags)}, "outputs": [output]}
    ]


def printed(text):
    return {"output_type": "stream", "name": "stdout", "text": text}


def displayed(kind, text):
    return {"output_type": "display_data", "data": {kind: text}, "metadata": {}}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_is_stored(notebook):
    script = TESTS / "project/documentation/notebooks.py"
    done = subprocess.run(
        [sys.executable, script, notebook.relative_to(DOCS)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, IMPORTED))},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout, done.returncode) == ("", 0), done.stdout + done.stderr


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_valid_and_was_stored_by_make_notebooks(notebook):
    read = nbformat.read(notebook, as_version=4)
    nbformat.validate(read)
    code = [cell for cell in read.cells if cell.cell_type == "code"]

    assert read.metadata.kernelspec.name == "python3"
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert {key for cell in read.cells for key in cell.metadata} <= {"tags"}
    assert {tag for c in code for tag in c.metadata.get("tags", ())} <= {MEASURED}
    assert nbformat.writes(read) + "\n" == notebook.read_text("utf-8")


@pytest.mark.parametrize(
    ("stored", "shown", "differs"),
    [
        (printed("a 1.5 ms\n"), printed("a 2.5 ms\n"), False),
        (printed(["a\n", "b\n"]), printed("a\nb\n"), False),
        (printed("a\n"), printed("b\n"), True),
        (printed("a\n"), printed(""), True),
        (printed(""), printed("a\n"), True),
        (printed("a\n"), None, True),
        (printed("a\n"), {**printed("a\n"), "name": "stderr"}, True),
        (displayed("text/plain", "3"), displayed("text/plain", "4"), True),
        *(
            (
                displayed("text/html", TABLE.format(5)),
                displayed("text/html", other),
                differs,
            )
            for other, differs in (
                (TABLE.format(6), False),
                (TABLE.format("None"), True),
                (TABLE.replace("QNN", "CPU").format(5), True),
                (TABLE.format(5) + "<p>Simulated.</p>", True),
            )
        ),
    ],
)
def test_what_a_cell_shows_is_compared_with_what_is_stored(stored, shown, differs):
    now = [] if shown is None else [shown]

    faults = list(compare(show(stored), [{**show(None)[0], "outputs": now}]))

    assert bool(faults) is differs


def test_of_a_measurement_only_the_headings_are_compared():
    stored = show(displayed("text/html", TABLE.format("1") + "<p>Busy.</p>"), MEASURED)
    other = deepcopy(stored)
    other[0]["outputs"][0]["data"]["text/html"] = TABLE.format("-")
    renamed = json.loads(json.dumps(stored).replace("QNN", "CPU"))

    assert list(compare(stored, other)) == []
    assert len(list(compare(stored, renamed))) == 1
