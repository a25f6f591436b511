"""What the registry's tests share: real distributions, installed into a folder that is put on sys.path."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest

# Discovery imports this on first use, when the tests below have taken the real installation off sys.path.
import epctx_core.registry.discovery  # noqa: F401
from epctx_core.options import CancellationFlag
from epctx_core.plugin import ModelIdentity, ProviderContext, Purpose
from epctx_core.registry import PluginRecord, PluginState, ProviderInstances
from epctx_core.registry.discovery import _finder

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
        """Return a second place to install to, which hides what is installed in this one."""
        earlier = Packages(self.folder.with_name("earlier"))
        sys.path.insert(0, str(earlier.folder))
        return earlier

    def install(self, distribution, name, *, sources=(), body="", code=None, version="1.0", value=None):
        """Install a distribution `a-b` with the package `a_b`, whose class `Provider` is the EP `name`."""
        module = distribution.replace("-", "_")
        value = value or f"{module}:Provider"
        lines = ["[epctx.execution_providers]", f"{name} = {value}"]
        if sources:
            lines += ["[epctx.ep_sources]", *(f"{source} = {value}" for source in sources)]
        self.write_metadata(distribution, "\n".join(lines), version=version)
        self.write_module(module, PROVIDER.format(name=name, body=body) if code is None else code)
        return module

    def write_module(self, module, code):
        (self.folder / f"{module}.py").write_text(code, encoding="utf-8")

    def write_metadata(self, distribution, entry_points, *, version="1.0", metadata=None):
        for old in self.folder.glob(f"{distribution.replace('-', '_')}-*.dist-info"):
            remove(old)
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        if metadata is None:
            metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        if metadata:
            (info / "METADATA").write_text(metadata, encoding="utf-8")
        data = entry_points if isinstance(entry_points, bytes) else entry_points.encode()
        (info / "entry_points.txt").write_bytes(data)

    def uninstall(self, distribution):
        (info,) = self.folder.glob(f"{distribution.replace('-', '_')}-*.dist-info")
        remove(info)


def remove(info):
    for file in info.iterdir():
        file.unlink()
    info.rmdir()


def holds_distributions(entry):
    return any(Path(entry).glob("*.dist-info")) or any(Path(entry).glob("*.egg-info"))


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """An environment in which only what the test installs is installed, and no EPCTX variable is set."""
    for variable in [name for name in os.environ if name.startswith("EPCTX_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setattr(_finder, "roots", {})
    packages = Packages(tmp_path / "site")
    bare = [entry for entry in sys.path if not holds_distributions(entry)]
    whole, before = sys.path[:], set(sys.modules)
    sys.path[:] = [str(packages.folder), *bare]
    yield packages
    sys.path[:] = whole
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def context():
    """What an EP instance is given; no EP of these tests uses engine or workspace."""

    @contextmanager
    def scratch():
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)

    return ProviderContext(
        options=MappingProxyType({}),
        session_config=MappingProxyType({}),
        purpose=Purpose.RUN,
        target=None,
        model=ModelIdentity(name="m", digest=None, opset_imports={"": 21}),
        logger=logging.getLogger("epctx.ep"),
        cancel=CancellationFlag(),
        progress=lambda stage, done, total: None,
        scratch=scratch,
        engine=None,
        workspace=None,
    )


@pytest.fixture
def record_of():
    """Make the record of a class as if a distribution `epctx-test` 1.2 had brought it."""

    def make(cls):
        return PluginRecord(
            name=cls.name,
            sources=(cls.name,),
            distribution="epctx-test",
            version="1.2",
            state=PluginState.LOADED,
            entry_point=f"{cls.__module__}:{cls.__qualname__}",
        )

    return make


@pytest.fixture
def session(record_of, context):
    """Make the instances of a session with the given classes."""

    def make(*classes):
        instances = ProviderInstances()
        for cls in classes:
            instances.add(record_of(cls), cls, context)
        return instances

    return make
