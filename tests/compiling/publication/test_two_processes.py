"""Two processes that publish into one folder again and again, and a loader that never
stops reading.
"""

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
harness = runpy.run_path(sys.argv[1], run_name="harness")
for n in range(int(sys.argv[4])):
    files = harness["make_files"](f"{sys.argv[3]}-{n}", ("m_ctx.onnx",), ("m_qnn.bin", "m.data"))
    harness["put"](Path(sys.argv[2]), files)
"""


def load(harness: ModuleType, folder: Path) -> str:
    """Load as the core does: when no copy matches, the publication ended meanwhile, so
    start again.

    Only a model that was replaced meanwhile excuses a binary that is nowhere.
    """
    while True:
        model = (folder / "m_ctx.onnx").read_bytes()
        if harness.list_missing_binaries(folder, "m_ctx.onnx") == []:
            return str(json.loads(model)["version"])
        assert (folder / "m_ctx.onnx").read_bytes() != model


def test_a_loader_finds_a_whole_model_while_two_processes_publish(
    harness: ModuleType, tmp_path: Path
) -> None:
    harness.put(
        tmp_path, harness.make_files("first", ("m_ctx.onnx",), ("m_qnn.bin", "m.data"))
    )
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(harness.__file__), tmp_path, who, "40"]
        )
        for who in ("left", "right")
    ]

    versions = [load(harness, tmp_path)]
    while any(writer.poll() is None for writer in writers):
        versions.append(load(harness, tmp_path))

    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(set(versions)) > 3
    assert any(version.startswith("left") for version in versions)
    assert any(version.startswith("right") for version in versions)
    assert load(harness, tmp_path) in {"left-39", "right-39"}
    assert harness.list_staging(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "m.data",
        "m_ctx.onnx",
        "m_qnn.bin",
    ]
