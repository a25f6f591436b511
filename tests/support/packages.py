"""Real distributions, installed into a folder as pip would leave them."""

from __future__ import annotations

import sys
from pathlib import Path

PROVIDER = """
from __future__ import annotations
from epctx_core.plugin import ExecutionProvider, hookimpl

class Provider(ExecutionProvider):
    name = "{name}"
{body}
    @hookimpl
    def get_capability(self, graph):
        return []

    @hookimpl
    def compile(self, partitions):
        return []
"""
ANY_CASE = """
    @classmethod
    def accepts_source(cls, source):
        return source.casefold() == cls.name.casefold()
"""


class Packages:
    """Installs and removes distributions as pip would leave them, without pip."""

    any_case = ANY_CASE

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def earlier_on_path(self):
        """Return a second place to install to, which hides what is installed in this
        one.
        """
        earlier = Packages(self.folder.with_name("earlier"))
        sys.path.insert(0, str(earlier.folder))
        return earlier

    def install(
        self,
        distribution,
        name,
        *,
        sources=(),
        body="",
        code=None,
        version="1.0",
        value=None,
        simulated=None,
    ):
        """Install a distribution `a-b` with the package `a_b`, whose class `Provider`
        is the EP `name`.
        """
        module = distribution.replace("-", "_")
        value = value or f"{module}:Provider"
        lines = ["[epctx.execution_providers]", f"{name} = {value}"]
        if sources:
            lines += [
                "[epctx.ep_sources]",
                *(f"{source} = {value}" for source in sources),
            ]
        if simulated:
            lines += ["[epctx.simulated]", f"{name} = {simulated}"]
        self.write_metadata(distribution, "\n".join(lines), version=version)
        self.write_module(
            module, PROVIDER.format(name=name, body=body) if code is None else code
        )
        return module

    def write_module(self, module, code):
        (self.folder / f"{module}.py").write_text(code, encoding="utf-8")

    def write_metadata(
        self, distribution, entry_points, *, version="1.0", metadata=None
    ):
        for old in self.folder.glob(f"{distribution.replace('-', '_')}-*.dist-info"):
            remove(old)
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        if metadata is None:
            metadata = (
                f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
            )
        if metadata:
            (info / "METADATA").write_text(metadata, encoding="utf-8")
        data = (
            entry_points if isinstance(entry_points, bytes) else entry_points.encode()
        )
        (info / "entry_points.txt").write_bytes(data)

    def uninstall(self, distribution):
        (info,) = self.folder.glob(f"{distribution.replace('-', '_')}-*.dist-info")
        remove(info)


def remove(info):
    for file in info.iterdir():
        file.unlink()
    info.rmdir()
