"""The EP that docs/kernel-eps.md shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from kernel_eps.acme import X, model_of, results_of

PAGE = Path(__file__).parents[3] / "docs" / "kernel-eps.md"


def test_the_ep_of_the_page_runs_its_operator():
    code, *_ = re.findall(
        r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    names = {"__name__": "documented"}
    exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102 - our own page

    (result,) = results_of(
        model_of("y = acme.Scale <factor: float = 3.0> (x)"), names["AcmeProvider"]
    )

    np.testing.assert_array_equal(result, X * 3)
