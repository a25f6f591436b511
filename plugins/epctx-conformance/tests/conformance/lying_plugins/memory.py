"""EPs that take the memory of inputs, of results or of earlier runs for their own."""

from __future__ import annotations

import ctypes

import numpy as np
from conformance.lying_plugins.numbers import Computing
from conformance.lying_plugins.table import lie
from support.honest_ep import HonestProvider


@lie("results_do_not_share_memory_with_inputs")
class GivesInputsBack(Computing):
    """A result that equals an input in all bytes is that input."""

    def run_of(self, prepared, graph):
        honest = super().run_of(prepared, graph)

        def run(inputs, outputs=None):
            results = honest(inputs, outputs)
            if outputs is not None:
                return results
            return [
                next((i for i in inputs if same(i, result)), result)
                for result in results
            ]

        return run


def same(left, right):
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and left.tobytes() == right.tobytes()
    )


@lie("it_does_not_write_to_inputs")
class WritesIntoInputs(HonestProvider):
    """Uses its first input as working memory, read-only or not."""

    def run_of(self, prepared, graph):
        def run(inputs, outputs=None):
            results = prepared.run(inputs, outputs)
            for array in inputs[:1]:
                ctypes.memset(array.ctypes.data, 0, array.nbytes)
            return results

        return run


@lie("results_do_not_share_memory_with_earlier_results")
class ReusesResults(HonestProvider):
    """Each run writes into the results of the one before."""

    def run_of(self, prepared, graph):
        kept: dict[tuple, np.ndarray] = {}

        def run(inputs, outputs=None):
            results = prepared.run(inputs)
            for place, result in enumerate(results):
                target = kept.setdefault((place, result.shape), np.empty_like(result))
                np.copyto(target, result)
                results[place] = target
            if outputs is not None:
                for target, result in zip(outputs, results, strict=True):
                    np.copyto(target, result)
            return results

        return run


@lie("it_writes_given_outputs_in_place_and_returns_them")
class IgnoresGivenOutputs(HonestProvider):
    """Returns new arrays where the caller gave its own."""

    def run_of(self, prepared, graph):
        return lambda inputs, outputs=None: prepared.run(inputs)


@lie("results_have_the_boundary_s_types_and_shapes_and_are_c_contiguous")
class GivesStridedResults(Computing):
    """Results of several dimensions lie in memory by column."""

    def after(self, array):
        return array.copy(order="F")
