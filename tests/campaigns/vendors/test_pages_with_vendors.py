"""Blocks of the documentation that need onnxruntime-qnn or onnxruntime-genai."""

from __future__ import annotations

import pytest
from documentation.page_files import write_page_files
from documentation.test_pages_run import run_in_process


@pytest.mark.parametrize(
    ("page", "needed"),
    [
        ("keep-onnxruntime.md", "onnxruntime-qnn"),
        ("native-binaries.md", "onnxruntime-qnn"),
        ("real-hardware.md", "onnxruntime-qnn"),
        ("genai.md", "onnxruntime-genai"),
        ("in-onnxruntime.md", "onnxruntime-genai"),
    ],
)
def test_blocks_for_vendors_packages_run_as_they_are_pasted(page, needed, tmp_path):
    written = tmp_path / "written"
    written.mkdir()
    write_page_files(written)

    done = run_in_process(page, written, tmp_path, f"needs {needed}")

    # Qualcomm's library prints a line of its own.
    faults = [line for line in done.stdout.splitlines() if line.startswith(f"{page}:")]
    assert (faults, done.returncode) == ([], 0), done.stdout + done.stderr
