"""Blocks of the documentation that need onnxruntime-qnn."""

from __future__ import annotations

import pytest
from documentation.page_files import write_page_files
from documentation.test_pages_run import run_in_process


@pytest.mark.parametrize(
    "page", ["keep-onnxruntime.md", "native-binaries.md", "real-hardware.md"]
)
def test_blocks_for_qnn_run_as_they_are_pasted(page, tmp_path):
    written = tmp_path / "written"
    written.mkdir()
    write_page_files(written)

    done = run_in_process(page, written, tmp_path, "needs onnxruntime-qnn")

    # Qualcomm's library prints a line of its own.
    faults = [line for line in done.stdout.splitlines() if line.startswith(f"{page}:")]
    assert (faults, done.returncode) == ([], 0), done.stdout + done.stderr
