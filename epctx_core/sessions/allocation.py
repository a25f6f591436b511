"""Memory for results, where EPs have the hook `allocate`: asked for, checked, and written into."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from epctx_core.registry.guard import contract_broken

if TYPE_CHECKING:
    from epctx_core.graph.type_table import TypeTable
    from epctx_core.registry.instances import ProviderInstances
    from epctx_core.sessions.plan import StepSpec

_Allocate: TypeAlias = "Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]"


def in_memory_of_eps(
    specs: Sequence[StepSpec], types: TypeTable, instances: ProviderInstances
) -> list[StepSpec]:
    """Have steps write into memory of the EP that runs them, or else of the first EP that reads what they make.

    Only where all outputs of a step have known types and shapes: a step gets memory for all or for none.
    """
    allocators = {
        ep: _allocator(instances, ep) for ep in instances.names if instances.implements(ep, "allocate")
    }
    readers: dict[str, _Allocate] = {}
    for spec in reversed(specs):
        if spec.ep in allocators:
            readers.update(dict.fromkeys(spec.inputs, allocators[spec.ep]))
    return [_in_memory(spec, types, allocators.get(spec.ep), readers) for spec in specs]


def _allocator(instances: ProviderInstances, ep: str) -> _Allocate:
    """Return what asks an EP for memory and checks what it gives."""
    record = instances.record(ep)

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        array = instances.call(ep, "allocate", shape=shape, dtype=dtype)
        problem = ""
        if not isinstance(array, np.ndarray):
            problem = f"a {type(array).__name__}"
        elif array.dtype != dtype or array.shape != shape:
            problem = f"{array.dtype}{list(array.shape)}"
        elif not array.flags.c_contiguous:
            problem = "memory that is not C-contiguous"
        elif not array.flags.writeable:
            problem = "read-only memory"
        if problem:
            asked = f"{dtype}{list(shape)}"
            raise contract_broken(record, "allocate", f"was asked for {asked} and gave {problem}")
        return array  # type: ignore[no-any-return]

    return allocate


def _in_memory(
    spec: StepSpec, types: TypeTable, own: _Allocate | None, readers: Mapping[str, _Allocate]
) -> StepSpec:
    owners = [own or readers.get(name) for name in spec.outputs]
    if not spec.in_place or not any(owners):
        return spec
    buffers: list[tuple[_Allocate, tuple[int, ...], np.dtype[Any]]] = []
    for owner, name in zip(owners, spec.outputs, strict=True):
        kind = types.proven(name)
        # Elements may be Python objects, which no memory of an EP's holds.
        if kind.shape is None or not kind.is_static or kind.dtype is None or kind.dtype.hasobject:
            return spec
        shape = tuple(dim for dim in kind.shape if isinstance(dim, int))
        buffers.append((owner or np.empty, shape, kind.dtype))
    run = spec.run

    def run_into_memory(inputs: Sequence[Any], _outputs: object) -> Sequence[Any]:
        return run(inputs, [make(shape, dtype) for make, shape, dtype in buffers])

    return spec._replace(run=run_into_memory)
