"""Sources of EPContext nodes that epctx has heard of, so that an error can say which package brings them.

The core needs none of these packages; the table only serves messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from epctx_core.registry.records import same_distribution


@dataclass(frozen=True, kw_only=True)
class KnownSource:
    """A source and who brings it.

    Attributes:
        ep: the EP type.
        aliases: other sources that stand for it.
        vendor: whose hardware it stands for.
        package: the distribution that brings a simulated back end for it, or None if there is none of ours.
        reserved: the name kept for the vendor's own distribution.
        spelling: the one source accepted, or None where case does not count.
    """

    ep: str
    aliases: tuple[str, ...] = ()
    vendor: str
    package: str | None = None
    reserved: str
    spelling: str | None = None

    def hint(self, source: str) -> str:
        """Say how to get an EP for this source, and that it is not the vendor's."""
        if self.package is None:
            return (
                f"epctx brings no package for {self.ep} ({self.vendor}): install the vendor's plugin for epctx "
                f"if there is one ({self.reserved} is reserved for it), or use an onnxruntime built with that EP."
            )
        text = (
            f"{self.package} brings a simulated one (pip install {self.package}), which does not read "
            f"payloads made for {self.vendor} hardware. The name {self.reserved} is reserved for the vendor."
        )
        if self.spelling not in (None, source):
            text += f" It takes only the source {self.spelling!r}, exactly; this node says {source!r}."
        return text


_KNOWN = (
    KnownSource(
        ep="QNNExecutionProvider",
        aliases=("QNN",),
        vendor="Qualcomm",
        package="epctx-sim-qnn",
        reserved="epctx-qnn",
    ),
    KnownSource(
        ep="OpenVINOExecutionProvider",
        vendor="Intel",
        package="epctx-sim-openvino",
        reserved="epctx-openvino",
        spelling="OpenVINOExecutionProvider",
    ),
    KnownSource(
        ep="VitisAIExecutionProvider",
        vendor="AMD",
        package="epctx-sim-vitisai",
        reserved="epctx-vitisai",
        spelling="VitisAIExecutionProvider",
    ),
    KnownSource(ep="MorphiZenExecutionProvider", vendor="AMD", reserved="epctx-morphizen"),
    KnownSource(ep="TensorrtExecutionProvider", vendor="NVIDIA", reserved="epctx-tensorrt"),
    KnownSource(ep="NvTensorRTRTXExecutionProvider", vendor="NVIDIA", reserved="epctx-tensorrt-rtx"),
)

KNOWN_SOURCES: Mapping[str, KnownSource] = MappingProxyType(
    {source.casefold(): known for known in _KNOWN for source in (known.ep, *known.aliases)}
)
"""By casefolded source: each EP of onnxruntime that writes EPContext nodes."""


def is_simulated(distribution: str) -> bool:
    """Whether a distribution is one of the packages whose EPs are simulated, by its name."""
    return any(same_distribution(known.package, distribution) for known in _KNOWN)


def known_source(source: str) -> KnownSource | None:
    """Return who brings a node's source, compared without case."""
    return KNOWN_SOURCES.get(source.casefold())


def known_name(name: str) -> KnownSource | None:
    """Return who brings an EP that a host named: `X` or `XExecutionProvider`, without case."""
    return known_source(name) or known_source(f"{name}ExecutionProvider")
