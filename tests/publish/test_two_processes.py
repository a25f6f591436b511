"""Two processes that publish into one folder again and again, and a loader that never stops reading."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

WRITER = """
import runpy, sys
from pathlib import Path
scenes = runpy.run_path(sys.argv[1], run_name="scenes")
for n in range(int(sys.argv[4])):
    files = scenes["content"](f"{sys.argv[3]}-{n}", ("m_ctx.onnx",), ("m_qnn.bin", "m.data"))
    scenes["put"](Path(sys.argv[2]), files)
"""


def load(scenes: ModuleType, folder: Path) -> str:
    """Load as the core does: when no copy matches, the publication ended meanwhile, so start again.

    Only a model that was replaced meanwhile excuses a binary that is nowhere.
    """
    while True:
        model = (folder / "m_ctx.onnx").read_bytes()
        if scenes.broken_names(folder, "m_ctx.onnx") == []:
            return str(json.loads(model)["version"])
        assert (folder / "m_ctx.onnx").read_bytes() != model


def test_a_loader_finds_a_whole_model_while_two_processes_publish(scenes: ModuleType, tmp_path: Path) -> None:
    scenes.put(tmp_path, scenes.content("first", ("m_ctx.onnx",), ("m_qnn.bin", "m.data")))
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(scenes.__file__), tmp_path, who, "40"])
        for who in ("left", "right")
    ]

    versions = [load(scenes, tmp_path)]
    while any(writer.poll() is None for writer in writers):
        versions.append(load(scenes, tmp_path))

    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(set(versions)) > 3
    assert any(version.startswith("left") for version in versions)
    assert any(version.startswith("right") for version in versions)
    assert load(scenes, tmp_path) in {"left-39", "right-39"}
    assert scenes.staging_left(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.data", "m_ctx.onnx", "m_qnn.bin"]
