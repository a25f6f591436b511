"""Damaged and hostile files give typed errors: no crash, no hang, no memory, no other
exception.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.cases import case, read_seeds
from fuzz.isolated import Worker
from fuzz.seeds import write_seeds
from fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
CASES = range(600, 1_000)
"""Numbers of cases; among them is each outcome that is expected."""
STRESS_CASES = range(50_000)
FEW = range(60)
MANY = range(3_000)
REACHED = {
    "files": {"merge ok", "extract ok", "embed ok", "externalize ok", "seal ok"},
    "nodes": {"load ok", "load InvalidGraph", "load again ok"},
    "container": {"decode ok", "decode InvalidGraph"},
    "records": {"pull ok", "pull Refused"},
}
"""What some cases of a target end with; what is only ever refused tests the door."""

pytestmark = pytest.mark.not_for_onnxruntime("one of the seeds has operators of acme")


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """A folder of seeds."""
    folder = tmp_path_factory.mktemp("seeds")
    write_seeds(folder)
    return folder


@pytest.fixture
def worker(seeds, tmp_path):
    """A worker on them."""
    with Worker(seeds, tmp_path / "case") as running:
        yield running


def kinds(results, action):
    """Return the outcomes of an action."""
    return {
        word.split(" ", 1)[1]
        for word in results.outcomes
        if word.startswith(f"{action} ")
    }


def test_mutated_files_give_typed_errors(worker):
    results = worker.run(CASES)

    assert results.cases == len(CASES)
    assert not results.faults, "\n\n".join(results.faults[:5])
    # What only ever is refused at the door tests the door.
    assert {"ok", "InvalidGraph", "InvalidProtobuf"} <= kinds(results, "load")
    assert "ok" in kinds(results, "run")
    assert "ok" in kinds(results, "npz")


@pytest.mark.stress
def test_many_mutated_files_give_typed_errors(worker):
    results = worker.run(STRESS_CASES)

    assert results.cases == len(STRESS_CASES)
    assert not results.faults, "\n\n".join(results.faults[:5])


@pytest.mark.parametrize(
    "cases", [FEW, pytest.param(MANY, marks=pytest.mark.stress)], ids=["few", "many"]
)
@pytest.mark.parametrize("target", TARGETS)
def test_mutated_files_of_each_target_give_typed_errors(target, cases, tmp_path):
    folder = tmp_path / "seeds"
    folder.mkdir()
    TARGETS[target].write_seeds(folder)

    with Worker(folder, tmp_path / "case", target) as running:
        results = running.run(cases)

    assert results.cases == len(cases)
    assert not results.faults, "\n\n".join(results.faults[:5])
    assert REACHED[target] <= set(results.outcomes)


def test_what_once_was_a_fault_is_none_any_more(worker):
    folders = sorted(path for path in CORPUS.iterdir() if path.is_dir())

    results = worker.run(folders)

    assert results.cases == len(folders) > 0
    assert not results.faults, "\n\n".join(results.faults[:5])


def test_every_folder_of_the_corpus_is_explained():
    said = (CORPUS / "README.md").read_text(encoding="utf-8")

    for path in CORPUS.iterdir():
        assert path.name == "README.md" or f"`{path.name}`" in said


def test_a_number_is_the_same_case_every_time(seeds):
    known = read_seeds(seeds)

    for number in range(0, 400, 7):
        assert case(known, number) == case(known, number)


def test_a_worker_that_dies_or_hangs_is_seen_and_replaced(seeds, tmp_path, monkeypatch):
    monkeypatch.setattr("fuzz.isolated.LONGEST", 1.0)
    with Worker(seeds, tmp_path / "case") as running:
        before = running.run([0])
        dead = running.run([Path("worker:die")])
        hanging = running.run([Path("worker:hang")])
        after = running.run([0])

    assert [len(results.faults) for results in (before, dead, hanging, after)] == [
        0,
        1,
        1,
        0,
    ]
    assert "ends the process (-11)" in dead.faults[0]
    assert "hangs" in hanging.faults[0]
