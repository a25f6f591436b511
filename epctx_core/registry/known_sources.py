"""Sources of EPContext nodes that epctx has heard of, so that an error can say which package brings them.

The core needs none of these packages; the table only serves messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class KnownSource:
    """A source and who brings it.

    Attributes:
        ep: the EP type.
        package: the distribution that brings a simulated back end for it.
        reserved: the name kept for the vendor's own distribution.
        vendor: whose hardware it stands for.
        spelling: the one source accepted, or None where case does not count.
    """

    ep: str
    package: str
    reserved: str
    vendor: str
    spelling: str | None

    def hint(self, source: str) -> str:
        """Say how to get an EP for this source, and that it is not the vendor's."""
        text = (
            f"{self.package} brings a simulated one (pip install {self.package}), which does not read "
            f"payloads made for {self.vendor} hardware. The name {self.reserved} is reserved for the vendor."
        )
        if self.spelling not in (None, source):
            text += f" It takes only the source {self.spelling!r}, exactly; this node says {source!r}."
        return text


_QNN = KnownSource(
    ep="QNNExecutionProvider",
    package="epctx-sim-qnn",
    reserved="epctx-qnn",
    vendor="Qualcomm",
    spelling=None,
)
_OPENVINO = KnownSource(
    ep="OpenVINOExecutionProvider",
    package="epctx-sim-openvino",
    reserved="epctx-openvino",
    vendor="Intel",
    spelling="OpenVINOExecutionProvider",
)
_VITISAI = KnownSource(
    ep="VitisAIExecutionProvider",
    package="epctx-sim-vitisai",
    reserved="epctx-vitisai",
    vendor="AMD",
    spelling="VitisAIExecutionProvider",
)

KNOWN_SOURCES: Mapping[str, KnownSource] = MappingProxyType(
    {
        source.casefold(): known
        for known, sources in (
            (_QNN, ("QNN", "QNNExecutionProvider", "QnnExecutionProvider")),
            (_OPENVINO, ("OpenVINOExecutionProvider",)),
            (_VITISAI, ("VitisAIExecutionProvider",)),
        )
        for source in sources
    }
)
"""By casefolded source."""


def known_source(source: str) -> KnownSource | None:
    """Return who brings a node's source, compared without case."""
    return KNOWN_SOURCES.get(source.casefold())


def known_name(name: str) -> KnownSource | None:
    """Return who brings an EP that a host named: `X` or `XExecutionProvider`, without case."""
    return known_source(name) or known_source(f"{name}ExecutionProvider")
