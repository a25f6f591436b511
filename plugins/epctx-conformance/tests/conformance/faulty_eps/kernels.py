"""EPs with a kernel that is wrong."""

from __future__ import annotations

import time

import numpy as np
from conformance.faulty_eps.table import fault
from conformance.kernel_ep import FLOATS, KernelProvider, kernel
from epctx_kernels import KernelDef, KernelRegistry
from onnx import TensorProto

KERNELS_ONLY = {"partitions": False, "export": False}


class Given(KernelProvider):
    """An EP of one kernel."""

    registry = KernelRegistry()

    def get_kernel_registry(self):
        return self.registry


def of_kernel(**changed):
    """Return a class with one kernel, of Add, with something changed."""
    definition = {
        "op_type": "Add",
        "since_version": 14,
        "type_constraints": FLOATS,
        "create": kernel(np.add),
    }
    return type(
        "OfKernel",
        (Given,),
        {"registry": KernelRegistry([KernelDef(**(definition | changed))])},
    )


@fault(
    "it_has_the_same_kernels_each_time_for_existing_versions_of_operators",
    **KERNELS_ONLY,
)
class NewKernelsEachTime(Given):
    def get_kernel_registry(self):
        self.registry.add(
            KernelDef(op_type="Neg", since_version=6, create=kernel(np.negative))
        )
        return self.registry


@fault(
    "it_has_the_same_kernels_each_time_for_existing_versions_of_operators",
    **KERNELS_ONLY,
)
class EndsBeforeItsOperator(of_kernel(op_type="Gelu", since_version=7, end_version=19)):
    pass


@fault("each_type_constraint_names_a_type_variable_of_the_operator", **KERNELS_ONLY)
class ConstrainsNothing(
    of_kernel(type_constraints={"TFloat": frozenset({TensorProto.FLOAT})})
):
    pass


@fault("its_kernels_give_the_right_results", **KERNELS_ONLY)
class SubtractsInstead(of_kernel(create=kernel(np.subtract))):
    pass


def _remembering(_node):
    scratch = []

    def run(inputs):
        scratch[:] = inputs
        time.sleep(0.002)
        return [np.add(*scratch)]

    return run


@fault("many_threads_run_one_compiled_session", **KERNELS_ONLY)
class KernelsRemember(of_kernel(create=_remembering)):
    pass
