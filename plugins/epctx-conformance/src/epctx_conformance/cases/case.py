"""A case: a model, its inputs, its expected outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Data:
    """Values for one run.

    Attributes:
        inputs: values by name.
        outputs: what to expect, in the model's order; empty: nobody knows.
        may_refuse: whether a typed error is as good as the outputs.
    """

    inputs: dict[str, Any]
    outputs: list[Any]
    may_refuse: bool = False


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and its data, both made when they are asked for.

    Attributes:
        name: unique among all cases of a run.
        model: gives the serialised model.
        data: gives one or more sets of inputs and outputs.
        rtol: share of a number by which a result may miss it, as of `numpy.allclose`;
            bfloat16 is allowed two units in the last place.
        atol: by how much besides; of a tuple each output has its own.
    """

    name: str
    model: Callable[[], bytes]
    data: Callable[[], list[Data]]
    rtol: float = 1e-3
    atol: float | tuple[float, ...] = 1e-7

    def for_output(self, number: int) -> Case:
        """Return the case with the tolerances of one output."""
        return (
            replace(self, atol=self.atol[number])
            if isinstance(self.atol, tuple)
            else self
        )
