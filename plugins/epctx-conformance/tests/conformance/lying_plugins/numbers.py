"""EPs whose results are wrong: always, or for the types, shapes and values that nobody
tried.
"""

from __future__ import annotations

import numpy as np
import onnx
from conformance.lying_plugins.table import lie
from support.honest_ep import HonestProvider


class Computing(HonestProvider):
    """Changes inputs or results on the way."""

    def run_of(self, prepared, graph):
        def run(inputs, outputs=None):
            results = [
                self.after(result)
                for result in prepared.run([self.before(i) for i in inputs])
            ]
            if outputs is None:
                return results
            for target, result in zip(outputs, results, strict=True):
                np.copyto(target, result)
            return outputs

        return run

    def before(self, array):
        return array

    def after(self, array):
        return array


@lie("float_what_it_claims_gives_the_right_results")
class WrongNumbers(Computing):
    """Each float is off by one percent of one."""

    def after(self, array):
        return array + array.dtype.type(0.01) if array.dtype.kind == "f" else array


@lie("int64_what_it_claims_gives_the_right_results")
class ComputesIntegersAsFloats(Computing):
    """Takes int64 and int32, and rounds them to what a float32 can hold."""

    def after(self, array):
        wide = array.dtype.kind == "i" and array.dtype.itemsize > 2
        with np.errstate(invalid="ignore"):
            return array.astype(np.float32).astype(array.dtype) if wide else array


@lie("double_what_it_claims_gives_the_right_results")
class ComputesDoublesAsFloats(Computing):
    """Takes float64 and gives what float32 can hold."""

    def after(self, array):
        return (
            array.astype(np.float32).astype(array.dtype)
            if array.dtype == np.float64
            else array
        )


@lie("uint8_what_it_claims_gives_the_right_results")
class TakesUnsignedForSigned(Computing):
    """Takes uint8 and saturates it as int8."""

    def after(self, array):
        return np.minimum(array, 127) if array.dtype == np.uint8 else array


@lie("nan_infinities_and_signed_zeros_give_the_right_results")
class LosesSpecialNumbers(Computing):
    """Turns NaN into zero, and infinity into a large number."""

    def before(self, array):
        return np.asarray(np.nan_to_num(array)) if array.dtype.kind == "f" else array


@lie("scalars_give_the_right_results")
class BreaksOnScalars(Computing):
    """Wants at least one dimension."""

    def before(self, array):
        return array if len(array) >= 0 else None


@lie("tensors_without_elements_give_the_right_results")
class BreaksOnNothing(Computing):
    """Looks at the first element to see what kind of input it has."""

    def before(self, array):
        array.flat[0]
        return array


@lie("results_have_the_boundary_s_types_and_shapes_and_are_c_contiguous")
class GivesAnotherType(Computing):
    """float32 comes back as float64."""

    def after(self, array):
        return array.astype(np.float64) if array.dtype == np.float32 else array


@lie("results_have_the_boundary_s_types_and_shapes_and_are_c_contiguous")
class GivesAnotherShape(Computing):
    """Results come back flat."""

    def after(self, array):
        return array.reshape(-1)


@lie("tensors_of_a_million_elements_give_the_right_results")
class WrongWhenLarge(Computing):
    """Only the first 65,536 elements are computed; the rest is what was in memory."""

    def after(self, array):
        flat = array.reshape(-1).copy()
        flat[65_536:] = 0
        return flat.reshape(array.shape)


@lie("inputs_may_be_views_of_larger_arrays_or_be_strided")
class ReadsAcrossStrides(Computing):
    """Takes the elements as they lie in the memory of a view's base, not as the view
    orders them.
    """

    def before(self, array):
        if (
            array.base is not None
            and isinstance(array.base, np.ndarray)
            and array.base.size >= array.size
        ):
            return array.base.reshape(-1)[: array.size].reshape(array.shape)
        return array


@lie("onnx_s_own_cases_s_what_it_claims_gives_the_expected_outputs")
class OverlooksAttributes(HonestProvider):
    """Compiles every operator as if it had no attributes."""

    def translated(self, partition):
        model = onnx.load_from_string(super().translated(partition))
        for node in model.graph.node:
            del node.attribute[:]
        return model.SerializeToString(deterministic=True)
