"""Single nodes that an EP runs by kernels: definitions that can match, and kernels that keep nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from epctx_conformance.models.blocks import BLOCKS
from epctx_conformance.models.structures import single
from epctx_conformance.table import CheckFailed, Skipped, check
from epctx_core.ext import implemented_hooks
from epctx_core.plugin import KernelDef, KernelRegistry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_conformance.models.building import SmallModel
    from epctx_conformance.scene import Scene


def _definitions(scene: Scene) -> list[KernelDef]:
    """Return the EP's kernels as one instance gives them, asked twice."""
    if "get_kernel_registry" not in implemented_hooks(scene.provider):
        raise Skipped("the EP has no kernels")
    answers: list[Any] = []
    keys: list[Any] = []

    def twice(honest: Any, **_given: Any) -> Any:
        for _ in range(2):
            answers.append(honest())
            keys.append([_key(definition) for definition in answers[-1] or ()])
        return answers[-1]

    watched, _ = scene.observed(get_kernel_registry=twice)
    # Of any model: kernels that match nothing are looked at, too.
    watched.explain(single(BLOCKS[0]))
    if answers[0] is None:
        raise Skipped("the EP gives no kernel registry")
    if not all(isinstance(answer, KernelRegistry) for answer in answers):
        raise CheckFailed(f"get_kernel_registry gave {answers[0]!r:.80} instead of a KernelRegistry.")
    if keys[0] != keys[1]:
        raise CheckFailed("get_kernel_registry gave other kernels the second time.")
    return list(answers[0])


def _key(definition: KernelDef) -> tuple[Any, ...]:
    constraints = sorted((name, sorted(types)) for name, types in definition.type_constraints.items())
    return (
        definition.domain,
        definition.op_type,
        definition.since_version,
        definition.end_version,
        repr(constraints),
    )


@check("kernels", "it gives the same kernels each time")
def check_same_kernels(scene: Scene) -> None:
    """Asked twice."""
    _definitions(scene)


@check("kernels", "each kernel covers versions that its operator has")
def check_versions(scene: Scene) -> None:
    """A range that ends before it begins, or before the operator exists, matches nothing."""
    for definition in _definitions(scene):
        end = definition.end_version
        if definition.since_version < 1 or (end is not None and end < definition.since_version):
            raise CheckFailed(
                f"the kernel of {definition.op_type} covers the versions {definition.since_version} to {end}: none."
            )
        if end is not None and not definition.domain:
            first = min(schema.since_version for schema in _schemas(definition))
            if end < first:
                raise CheckFailed(
                    f"the kernel of {definition.op_type} ends at {end}; the operator begins at {first}."
                )


def _schemas(definition: KernelDef) -> list[Any]:
    """Return every version of an operator of onnx's."""
    found = [
        schema
        for schema in onnx.defs.get_all_schemas_with_history()
        if (schema.domain, schema.name) == (definition.domain, definition.op_type)
    ]
    if not found:
        raise CheckFailed(
            f"there is a kernel of {definition.op_type} in the default domain, and onnx has no such operator."
        )
    return found


@check("kernels", "each type constraint names a type variable of the operator")
def check_constraints(scene: Scene) -> None:
    """A name that the operator does not have restricts nothing, and the kernel gets types it cannot compute."""
    for definition in _definitions(scene):
        if definition.domain:
            continue
        known = {c.type_param_str for schema in _schemas(definition) for c in schema.type_constraints}
        unknown = sorted(definition.type_constraints.keys() - known)
        if unknown:
            raise CheckFailed(
                f"the kernel of {definition.op_type} restricts {unknown[0]!r}; its variables: {sorted(known)}.",
                hint="Use the operator's own names of types, as in the ONNX documentation of operators.",
            )
        for variable, types in definition.type_constraints.items():
            wrong = [t for t in types if t not in onnx.TensorProto.DataType.values()]
            if wrong or not types:
                raise CheckFailed(
                    f"the kernel of {definition.op_type} allows {sorted(types)} for {variable!r}, which is no set of "
                    "element types."
                )


def _models_of_kernels(scene: Scene) -> list[SmallModel]:
    """Return models of which the EP runs a node by a kernel."""
    _definitions(scene)
    found = [m for m in scene.claimed_models() if any(node.kernel for node in scene.explain(m).nodes)]
    if not found:
        raise Skipped("the EP runs no node of the kit's models by a kernel")
    return found


@check("kernels", "nodes that it runs by kernels give the right results")
def check_results(scene: Scene) -> None:
    """One model for each of the kit's operators that it has a kernel for."""
    for model in _models_of_kernels(scene):
        scene.expect_run(model, "run by kernels")


@check("kernels", "a kernel writes nothing into its inputs")
def check_inputs_kept(scene: Scene) -> None:
    """What the caller gave is what the caller still has."""
    for model in _models_of_kernels(scene):
        feeds = model.feeds()
        before = {name: array.copy() for name, array in feeds.items()}
        scene.run(model, feeds)
        changed = [name for name, array in feeds.items() if not np.array_equal(array, before[name])]
        if changed:
            raise CheckFailed(f"after a run of {model.name} the input {changed[0]!r} is another one.")


@check("kernels", "kernels run in many threads", needs=("concurrency",))
def check_threads(scene: Scene) -> None:
    """One session, four threads, other numbers in each call."""
    for model in _models_of_kernels(scene)[:4]:
        feeds = [model.feeds(seed) for seed in range(4)]
        with scene.session(model) as session, ThreadPoolExecutor(4) as threads:
            runs = range(16)
            results: Sequence[Any] = list(
                threads.map(lambda i, s=session, f=feeds: s.run(None, f[i % 4]), runs)
            )
        for place in runs:
            scene.expect_agreement(
                model, results[place], feeds[place % 4], "run by kernels in several threads"
            )
