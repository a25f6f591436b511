"""All committed models of the zoo on each route: a process takes them all, and the
models that it wrote are loaded by another one.
"""

from __future__ import annotations

import pytest
from zoo.routes import EPS
from zoo.scripts import FOLDER
from zoo.taking import problems_of, take

TAKEN = {"qnn": 36, "openvino": 126, "vitisai": 3, "all": 126}
"""Number of models of which EPs take nodes."""


def test_every_model_runs_as_it_is_without_a_warning(tmp_path):
    assert problems_of(take("plain", FOLDER, tmp_path)) == {}


@pytest.mark.parametrize("eps", EPS)
def test_every_model_runs_compiles_and_loads_in_another_process(eps, tmp_path):
    compiled = take(f"compile:{eps}", FOLDER, tmp_path)
    assert problems_of(compiled) == {}
    assert sum(outcome["taken"] > 0 for outcome in compiled) == TAKEN[eps]

    assert problems_of(take(f"load:{eps}", FOLDER, tmp_path)) == {}
