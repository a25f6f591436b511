"""EPs that take the memory of inputs, of results or of earlier runs for their own."""

from __future__ import annotations

import ctypes

import numpy as np
from conformance.honest_ep import HonestProvider
from conformance.lying_plugins.numbers import Computing
from conformance.lying_plugins.table import lie


@lie("results_are_not_the_inputs_memory")
class GivesInputsBack(Computing):
    """A result that equals an input in all bytes is that input."""

    def run_of(self, prepared, graph):
        honest = super().run_of(prepared, graph)

        def run(inputs, outputs=None):
            results = honest(inputs, outputs)
            if outputs is not None:
                return results
            return [next((i for i in inputs if same(i, result)), result) for result in results]

        return run


def same(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


@lie("inputs_are_not_written_to")
class WritesIntoInputs(HonestProvider):
    """Uses its first input as working memory, read-only or not."""

    def run_of(self, prepared, graph):
        def run(inputs, outputs=None):
            results = prepared.run(inputs, outputs)
            for array in inputs[:1]:
                ctypes.memset(array.ctypes.data, 0, array.nbytes)
            return results

        return run


@lie("results_are_not_the_memory_of_earlier_results")
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


@lie("given_outputs_are_written_in_place_and_returned")
class IgnoresGivenOutputs(HonestProvider):
    """Returns new arrays where the caller gave its own."""

    def run_of(self, prepared, graph):
        return lambda inputs, outputs=None: prepared.run(inputs)


@lie("results_are_what_the_boundary_says_type_shape_number_c_contiguous")
class GivesStridedResults(Computing):
    """Results of several dimensions lie in memory by column."""

    def after(self, array):
        return array.copy(order="F")
