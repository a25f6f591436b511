"""An EP in Python runs in GenAI, whose onnxruntime is another copy than Python's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HOST = Path(__file__).with_name("genai_host.py")


def test_a_decoder_gives_the_same_tokens_on_an_ep_in_python(tmp_path):
    pytest.importorskip("onnxruntime_genai")
    done = subprocess.run(
        [sys.executable, HOST, tmp_path], capture_output=True, check=False, text=True
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["tokens"] == found["expected"]
    assert len(set(found["tokens"])) > 10
    # Two products for each pass of the decoder, which has a pass for the prompt.
    assert found["runs"] == 2 * (len(found["tokens"]) - 3)
