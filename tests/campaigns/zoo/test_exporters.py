"""The scripts that made the zoo.

`make stress` gives them the exporters that they name, runs them again, and takes all that
they make on every route.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from support.pages import read_page
from zoo.exporters.saving import read_inputs, read_runs
from zoo.making import install, make_models, run
from zoo.routes import EPS
from zoo.scripts import FOLDER, header, list_scripts, models_of
from zoo.taking import problems_of, take

HERE = Path(__file__).parent
SCRIPTS = list_scripts()
TOGETHER = list_scripts(together=True)


def results(model, inputs):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = (
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    )
    found = onnxruntime.InferenceSession(
        model, options, providers=["CPUExecutionProvider"]
    ).run(None, inputs)
    return [
        [list(row.values()) for row in each] if isinstance(each, list) else each
        for each in found
    ]


def assert_same_model(made, shipped, inputs):
    """Expect the same bytes, or the same operators and near results: training sums
    differ between CPUs.
    """
    if made == shipped:
        return
    one, other = (
        Counter(n.op_type for n in onnx.load_from_string(m).graph.node)
        for m in (made, shipped)
    )
    assert one == other
    for a, b in zip(results(made, inputs), results(shipped, inputs), strict=True):
        if np.asarray(a).dtype.kind in "fiub":
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
        else:
            assert np.array_equal(a, b)


def test_each_model_is_made_by_one_script_and_all_are_small():
    made = Counter(name for script in SCRIPTS for name in models_of(script))

    assert made == dict.fromkeys((path.stem for path in FOLDER.glob("*.onnx")), 1)
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 3_000_000
    assert all(
        script.name in (HERE / "README.md").read_text("utf-8") for script in SCRIPTS
    )


def assert_made_again(script, folder):
    """Expect what a script made in a folder to be what is committed."""
    made = {path.stem: path for path in folder.glob("*.onnx")}
    assert made.keys() >= models_of(script)
    for name in models_of(script):
        path = made[name]
        inputs, again = (
            read_inputs(FOLDER / f"{name}.npz"),
            read_inputs(path.with_suffix(".npz")),
        )
        np.testing.assert_equal(again, inputs)
        assert_same_model(
            path.read_bytes(), (FOLDER / f"{name}.onnx").read_bytes(), inputs
        )


def test_each_open_dimension_has_two_lengths():
    for path in FOLDER.glob("*.onnx"):
        runs = read_runs(path.with_suffix(".npz"))
        graph = onnx.load(path).graph
        weights = {tensor.name for tensor in graph.initializer}
        for value in (v for v in graph.input if v.name not in weights):
            for axis, length in enumerate(value.type.tensor_type.shape.dim):
                lengths = {np.shape(run.inputs[value.name])[axis] for run in runs}
                assert length.dim_value > 0 or len(lengths) > 1, (path.stem, value.name)


def test_the_page_has_the_numbers_of_the_last_run_of_all():
    page = read_page("zoo.md")
    block = page.partition("<!-- zoo: begin -->")[2].partition("<!-- zoo: end -->")[0]

    count = int(re.search(r"^(\d+) models", block, re.MULTILINE)[1])
    rows = re.findall(r"\| (\d+) \| (\d+) \| \d* *\|$", block, re.MULTILINE)
    assert len(rows) == 1 + 2 * len(EPS)
    assert {int(right) + int(wrong) for right, wrong in rows} == {count}
    assert count >= 120


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "script",
    [script for script in SCRIPTS if script not in TOGETHER],
    ids=lambda script: script.stem,
)
def test_a_script_makes_its_models_again(script, tmp_path):
    install(header(script)["dependencies"], tmp_path / "venv")

    run(script, tmp_path / "venv", tmp_path / "made")

    assert_made_again(script, tmp_path / "made")


@pytest.fixture(scope="module")
def made_together():
    """The folder of all models that exporters in one environment make, as `make zoo`
    has them.
    """
    return make_models()


@pytest.mark.stress
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("script", TOGETHER, ids=lambda script: script.stem)
def test_scripts_in_one_environment_make_their_models_again(script, made_together):
    assert_made_again(script, made_together)


@pytest.mark.stress
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("eps", ["plain", *EPS])
def test_every_model_of_todays_exporters_is_right_on_every_route(
    eps, made_together, tmp_path
):
    routes = ["plain"] if eps == "plain" else [f"compile:{eps}", f"load:{eps}"]
    for route in routes:
        assert problems_of(take(route, made_together, tmp_path)) == {}
