"""What the command line's tests share: calling it in this process, as a process, and
small models.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest
from support.command_line import main
from support.installed import install_distribution

PROVIDER = """
from epctx_core.plugin import Availability, CompiledPartition, ExecutionProvider, hookimpl, supported_partitions

class Provider(ExecutionProvider):
    name = "{name}"
{body}
    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: "this EP takes nothing")

    @hookimpl
    def compile(self, partitions):
        return [CompiledPartition(None) for _ in partitions]

    @hookimpl
    def get_ep_context_nodes(self, writer):
        return []

    @hookimpl
    def load_context(self, nodes, reader):
        return []
"""


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a command line came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Standard output as the one JSON object it has to be."""
        answer = json.loads(self.out)
        assert answer["schema"] == 1
        return answer


@pytest.fixture
def epctx(capsys, monkeypatch):
    """Call the command line in this process, with further folders to import from for
    the call.
    """

    def call(*arguments, path=()) -> Said:
        capsys.readouterr()
        before = set(sys.modules)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "path", [*map(str, path), *sys.path])
            code = main([str(a) for a in arguments])
        for name in set(sys.modules) - before if path else ():
            if any(Path(folder, f"{name}.py").is_file() for folder in path):
                del sys.modules[name]
        captured = capsys.readouterr()
        return Said(code=code, out=captured.out, err=captured.err)

    return call


@pytest.fixture
def process(tmp_path):
    """Call it as a process of its own, in an empty folder, with further folders to
    import from.
    """

    def call(*arguments, path=(), timeout=120, **environment) -> Said:
        # Unbuffered, the C library would print at once and hide what is left in its
        # buffer.
        clean = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith("EPCTX_") and k != "PYTHONUNBUFFERED"
        }
        # After them what the suite itself imports from, so that both run the same code.
        folders = [*map(str, path), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**clean, "PYTHONPATH": os.pathsep.join(folders), **environment}
        command = [sys.executable, "-m", "epctx_core", *map(str, arguments)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=env,
            cwd=tmp_path,
            timeout=timeout,
            check=False,
        )
        return Said(code=done.returncode, out=done.stdout, err=done.stderr)

    return call


@pytest.fixture
def site(tmp_path):
    """Install distributions into a folder, as pip would leave them; gives the
    folder.
    """
    folder = tmp_path / "site"
    folder.mkdir()

    def install(distribution, name, *, body="", code=None, npu=None, requires=()):
        """Write a plugin; with `npu`, a requirement, its EP belongs to an extra of that
        name.
        """
        module = distribution.replace("-", "_")
        fields = [f"Requires-Dist: {each}" for each in requires]
        if npu:
            fields += [
                "Provides-Extra: acme-npu",
                f'Requires-Dist: {npu}; extra == "acme-npu"',
            ]
        target = f"{module}:Provider" + (" [acme-npu]" if npu else "")
        entries = {"epctx.execution_providers": {name: target}}
        install_distribution(folder, distribution, entries, fields=fields)
        text = PROVIDER.format(name=name, body=body) if code is None else code
        (folder / f"{module}.py").write_text(text)
        return folder

    return install


@pytest.fixture
def distribution():
    """Write the metadata of a distribution into a folder:
    `distribution(folder, "acme-npu", "2.8", requires=[…])`.
    """

    def install(folder, name, version="1.0", *, requires=()):
        fields = [f"Requires-Dist: {each}" for each in requires]
        install_distribution(folder, name, {}, version=version, fields=fields)

    return install


@pytest.fixture
def resnet(network):
    """A plain network, as a test's own copy."""
    return network("resnet")


@pytest.fixture(scope="session")
def _compiled_once(network, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    source = network("resnet")
    shutil.copyfile(source.path, folder / "resnet.onnx")
    assert main(["compile", str(folder / "resnet.onnx"), "--ep", "QNN"]) == 0
    return folder


@pytest.fixture
def compiled(_compiled_once, tmp_path):
    """A context model with its source and binary, as a test's own copy; gives the
    context model's path.
    """
    folder = tmp_path / "compiled"
    shutil.copytree(_compiled_once, folder)
    return folder / "resnet_ctx.onnx"


@pytest.fixture
def model(tmp_path):
    """Write a small model, given in ONNX's text form or as its nodes alone."""

    def write(text: str, name: str = "small.onnx") -> Path:
        if not text.lstrip().startswith("<"):
            text = (
                '<ir_version: 8, opset_import: ["" : 17]> small (float[N, 3] x) => '
                f"(float[N, 3] y) {{ {text} }}"
            )
        path = tmp_path / name
        onnx.save(onnx.parser.parse_model(text), path)
        return path

    return write


def on_a_terminal(*arguments, width=160, **environment):
    """Run the command line in a pseudo-terminal of some columns, which `COLUMNS`
    overrides; return exit code and everything that it shows.
    """
    command = [sys.executable, "-m", "epctx_core", *map(str, arguments)]
    env = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "COLUMNS"}}
    env |= {
        "TERM": "xterm",
        "PYTHONIOENCODING": "utf-8",
        **environment,
    }
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", 24, width, 0, 0))
        os.execve(sys.executable, command, env)  # noqa: S606 - there is no shell in between by design
    shown = b""
    try:
        while piece := os.read(terminal, 65536):
            shown += piece
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), shown.decode()


def hide_package(name, folder):
    """Have the import system raise what it does where there is no such package."""
    absent = (
        "raise ModuleNotFoundError('No module named ' + repr(__name__), name=__name__)"
    )
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(absent)
