"""EPs with a kernel that is wrong."""

from __future__ import annotations

import time

import numpy as np
from conformance.faulty_eps.table import fault
from conformance.kernel_ep import FLOATS, KernelProvider, kernel
from epctx_kernels import KernelDef, KernelRegistry

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
