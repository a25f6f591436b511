"""Package of a new plugin when it cannot be written whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from epctx_cli.templates import create_plugin

pytestmark = pytest.mark.internal


def test_an_interruption_leaves_no_folder(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", interrupt)
    with pytest.raises(KeyboardInterrupt):
        create_plugin("acme", tmp_path)

    assert list(tmp_path.iterdir()) == []
