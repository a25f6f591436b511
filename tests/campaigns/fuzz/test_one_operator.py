"""Models of one operator, with what its definition has drawn at its limits, end no
process, are read soon, and are refused by typed errors.
"""

from __future__ import annotations

import json
import os
import time
from itertools import count

import pytest
from fuzz.isolated import Results, Worker
from fuzz.one_operator import list_schemas, make_model
from fuzz.seeds import INDEX
from fuzz.worker import OPERATOR

CASES = 300
STRESS_SECONDS = float(os.environ.get("ONE_OPERATOR_SECONDS", "1200"))


@pytest.fixture
def worker(tmp_path):
    """A worker that needs no seeds."""
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    (seeds / INDEX).write_text(json.dumps({}))
    with Worker(seeds, tmp_path / "case") as running:
        yield running


def test_models_of_one_operator_give_typed_errors(worker):
    results = worker.run(f"{OPERATOR}{number}" for number in range(CASES))

    assert not results.faults, "\n\n".join(results.faults[:5])
    assert results.cases == CASES
    # A generator of models that nothing accepts would find nothing.
    assert results.outcomes["load ok"] > CASES / 5
    assert results.outcomes["load InvalidGraph"] > CASES / 5


@pytest.mark.stress
def test_twenty_minutes_of_models_of_one_operator_give_typed_errors(worker):
    results, until = Results(), time.monotonic() + STRESS_SECONDS
    for number in count(CASES):
        if time.monotonic() > until:
            break
        worker.run([f"{OPERATOR}{number}"], results)

    print(results.cases, dict(results.outcomes))  # noqa: T201 - for fuzzing.md
    assert not results.faults, "\n\n".join(results.faults)


def test_a_number_is_the_same_model_every_time():
    for number in range(0, 400, 7):
        assert make_model(number) == make_model(number)


def test_every_operator_of_onnx_is_drawn():
    drawn = {make_model(number).graph.node[0].op_type for number in range(8_000)}

    assert {schema.name for schema in list_schemas()} <= drawn
