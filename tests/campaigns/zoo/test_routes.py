"""All committed models of the zoo on each route: a process takes them all, and the
models that it wrote are loaded by another one.
"""

from __future__ import annotations

import pytest
from zoo.routes import EPS
from zoo.scripts import FOLDER
from zoo.taking import problems_of, take

TAKEN = {"qnn": 25, "openvino": 110, "vitisai": 3, "all": 110}
"""Number of models of which EPs take nodes; of 16 others they would get data movement
alone.
"""
STEP = 14
"""One of so many models takes the route of an EP alone; and all quantised ones, of
which Vitis AI takes nodes.
"""


def test_every_model_runs_as_it_is_without_a_warning(tmp_path):
    assert problems_of(take("plain", FOLDER, tmp_path)) == {}


@pytest.mark.parametrize(
    "eps",
    [
        eps if eps == "all" else pytest.param(eps, marks=pytest.mark.stress)
        for eps in EPS
    ],
)
def test_every_model_runs_compiles_and_loads_in_another_process(eps, tmp_path):
    compiled = take(f"compile:{eps}", FOLDER, tmp_path)
    assert problems_of(compiled) == {}
    assert sum(outcome["taken"] > 0 for outcome in compiled) == TAKEN[eps]

    assert problems_of(take(f"load:{eps}", FOLDER, tmp_path)) == {}


@pytest.mark.parametrize("eps", sorted(EPS.keys() - {"all"}))
def test_a_sample_of_the_models_takes_the_route_of_each_ep_alone(eps, tmp_path):
    sample = tmp_path / "models"
    sample.mkdir()
    quantised = FOLDER.glob("quantised*.onnx")
    for path in {*sorted(FOLDER.glob("*.onnx"))[::STEP], *quantised}:
        for file in FOLDER.glob(f"{path.stem}.*"):
            (sample / file.name).symlink_to(file)

    compiled = take(f"compile:{eps}", sample, tmp_path)
    loaded = take(f"load:{eps}", sample, tmp_path)

    assert problems_of(compiled) == problems_of(loaded) == {}
    assert len(compiled) == len(loaded) > 10
    assert any(outcome["taken"] for outcome in compiled)
