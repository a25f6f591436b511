"""The committed zoo on the EPs of Qualcomm (simulator) and Intel."""

from __future__ import annotations

import pytest
from vendors.routes import route
from zoo.routes import REAL
from zoo.scripts import FOLDER
from zoo.taking import problems_of, take

LACKING: dict[str, dict[str, set[str]]] = {}
"""Nodes of a model that onnxruntime gives an EP and epctx does not, by route."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("eps", REAL)
def test_every_model_is_right_and_an_ep_gets_what_onnxruntime_gives_it(eps, tmp_path):
    route(f"epctx with {REAL[eps]}")  # skips where there is no device
    compiled = take(f"compile:{eps}", FOLDER, tmp_path)
    assert problems_of(compiled) == {}
    lacking = {o["name"]: set(o["lacking"]) for o in compiled if o["lacking"]}
    assert lacking == LACKING.get(eps, {})

    assert problems_of(take(f"load:{eps}", FOLDER, tmp_path)) == {}
