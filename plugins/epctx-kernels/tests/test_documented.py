"""The EPs that docs/how-to/eps/kernel-eps.md shows work as they stand there."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.acme import X, model_of, results_of, session_of
from support.pages import FILES

PAGE = FILES["kernel-eps.md"]


@pytest.fixture(scope="module")
def eps():
    names = {"__name__": "documented"}
    text = PAGE.read_text(encoding="utf-8")
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102 - our own page
    return names


def test_the_ep_of_the_page_runs_its_operator(eps):
    (result,) = results_of(
        model_of("y = acme.Scale <factor: float = 3.0> (x)"), eps["AcmeProvider"]
    )

    np.testing.assert_array_equal(result, X * 3)


def test_the_ep_of_the_page_that_compiles_too_does_both(eps):
    model = model_of("a = Relu(x) y = acme.Scale(a)", inner="float[2] a")

    with session_of(model, eps["AcmeCompiler"]) as session:
        (result,) = session.run(None, {"x": X})
        rows = {row["ep"]: row["nodes"] for row in session.placement().eps}

    np.testing.assert_array_equal(result, 2 * np.maximum(X, 0))
    assert rows == {"AcmeCompilerExecutionProvider": 2, "CPUExecutionProvider": 0}
