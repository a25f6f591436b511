"""Kernels as an EP states them: one for a range of versions of an operator and a set of
types.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    from epctx_core.plugin import NodeView

Kernel: TypeAlias = "Callable[..., Sequence[np.ndarray | None]]"
"""`kernel(inputs)`, or `kernel(inputs, outputs)` where `KernelDef.takes_outputs` says
so.

`inputs` are the node's `inputs` (None for an omitted one), then its `implicit_inputs`:
C-contiguous and read-only. The answer has one C-contiguous array for each of the node's
`outputs` (anything for an omitted one), which shares no memory with an input. `outputs`
are arrays to be written in place and returned, or None. A kernel keeps no state: any
number of threads call it at the same time.
"""


@dataclass(frozen=True, kw_only=True)
class OperatorTypes:
    """Type constraints of an operator that has no ONNX schema.

    Attributes:
        domain, op_type: the operator; the default domain is the empty string.
        since_version: the version of the domain with which the operator came, or
            changed last.
        inputs, outputs: for each parameter in order the type variable it shares with
            others (`T`), or a name of its own. A variadic one is the last; its first
            value says the type.

    Examples:
        >>> OperatorTypes(
        ...     domain="acme", op_type="Scale", inputs=("T", "factor"), outputs=("T",)
        ... )
    """

    domain: str
    op_type: str
    since_version: int = 1
    inputs: Sequence[str]
    outputs: Sequence[str]

    def __post_init__(self) -> None:
        """Check the values of a plugin."""
        _check_versions(self.op_type, self.since_version, None)
        if isinstance(self.inputs, str) or isinstance(self.outputs, str):
            raise TypeError(
                f"{self.op_type}: inputs and outputs are sequences of names; one name "
                "is ('T',)"
            )


@dataclass(frozen=True, kw_only=True)
class KernelDef:
    """One kernel.

    It fits a node of its operator by ONNX Runtime's rules
    (`KernelRegistry::VerifyKernelDef`, `KernelTypeStrResolver`, since 1.13):

    - *Version.* What counts is the version in which the node's operator changed last,
      not the model's opset: opset 21 has Add in its version 14. The kernel fits if
      `since_version` is that version, or, with an `end_version`, if that version lies
      between the two. So without `end_version` it fits one version only: nobody can
      know what a later one will change. Of an operator that nothing describes only the
      model's opset version is known: it has to be `since_version` or later, and not
      after `end_version`.
    - *Types.* Each constraint is looked up in the operator's table: a type variable, or
      a parameter's own name where its type is no variable. The first of those inputs,
      then outputs, that the node has decides. The table comes from the ONNX schema,
      else from `KernelRegistry(operators=...)`, else from the context model's metadata.
      Without a table a kernel with constraints fits nothing.

    Attributes:
        domain, op_type: the operator; the default domain is the empty string or
            `ai.onnx`.
        since_version: the first operator version covered.
        end_version: the last one covered; None for `since_version` alone.
        type_constraints: type variable or parameter name to the element types allowed
            (`onnx.TensorProto.DataType`); what is not named is not restricted.
        create: makes a stateless kernel for one node; called once a node when a session
            is made.
        takes_outputs: whether the kernel is called `kernel(inputs, outputs)`; `outputs`
            are then the host's memory, or with the hook `allocate` the EP's, where all
            shapes are known. Results of other kernels are copied there.
    """

    domain: str = ""
    op_type: str
    since_version: int
    end_version: int | None = None
    type_constraints: Mapping[str, Collection[int]] = field(default_factory=dict)
    create: Callable[[NodeView], Kernel]
    takes_outputs: bool = False

    def __post_init__(self) -> None:
        """Check the values of a plugin."""
        _check_versions(self.op_type, self.since_version, self.end_version)
        for name, allowed in self.type_constraints.items():
            if not isinstance(allowed, Collection) or not all(
                isinstance(kind, int) for kind in allowed
            ):
                raise TypeError(
                    f"{self.op_type}: type_constraints[{name!r}] is {allowed!r}, not "
                    "a set of element types such as {onnx.TensorProto.FLOAT}"
                )
        if not callable(self.create):
            raise TypeError(
                f"{self.op_type}: create is {self.create!r}, not a function that "
                "makes a kernel for a node"
            )

    def __str__(self) -> str:
        """Return operator and versions for messages."""
        end = "" if self.end_version is None else f" to {self.end_version}"
        domain = f"{self.domain}::" if _plain(self.domain) else ""
        return f"{domain}{self.op_type} {self.since_version}{end}"


class KernelRegistry:
    """The kernels of one EP.

    Args:
        kernels: the first that fits a node is taken.
        operators: the types of operators without an ONNX schema. A context model
            carries those of its nodes on to where it is loaded.
    """

    def __init__(
        self, kernels: Sequence[KernelDef] = (), operators: Sequence[OperatorTypes] = ()
    ) -> None:
        self._by_operator: dict[tuple[str, str], list[KernelDef]] = {}
        self.operators: Sequence[OperatorTypes] = tuple(operators)
        for kernel in kernels:
            self.add(kernel)

    def add(self, kernel: KernelDef) -> None:
        """Add a kernel; the first match wins at look-up."""
        self._by_operator.setdefault(
            (_plain(kernel.domain), kernel.op_type), []
        ).append(kernel)

    def candidates(self, domain: str, op_type: str) -> Sequence[KernelDef]:
        """Return the kernels of one operator, in the order in which they were added."""
        return tuple(self._by_operator.get((_plain(domain), op_type), ()))

    def __iter__(self) -> Iterator[KernelDef]:
        for kernels in self._by_operator.values():
            yield from kernels


def _plain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _check_versions(op_type: str, since: int, end: int | None) -> None:
    if not all(
        isinstance(version, int) for version in (since, since if end is None else end)
    ):
        raise TypeError(
            f"{op_type}: operator versions are whole numbers, not {since!r} to {end!r}"
        )
    if since < 1 or (end is not None and end < since):
        raise ValueError(f"{op_type}: there are no operator versions {since} to {end}")
