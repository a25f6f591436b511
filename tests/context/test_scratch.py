"""Folders of one user: where each platform wants them."""

from __future__ import annotations

import pytest

from epctx_core.context.scratch import get_user_folder

pytestmark = pytest.mark.internal


@pytest.mark.parametrize(
    ("platform", "environment", "folder"),
    [
        ("linux", {"HOME": "/home/user"}, "/home/user/.cache/epctx"),
        ("linux", {"HOME": "/home/user", "XDG_CACHE_HOME": "/var/x"}, "/var/x/epctx"),
        (
            "linux",
            {"HOME": "/home/user", "XDG_CACHE_HOME": "relative"},
            "/home/user/.cache/epctx",
        ),
        ("darwin", {"HOME": "/home/user"}, "/home/user/Library/Caches/epctx"),
        (
            "win32",
            {"HOME": "/home/user", "LOCALAPPDATA": "/local"},
            "/local/epctx/cache",
        ),
    ],
)
def test_each_platform_has_its_place_for_a_users_caches(platform, environment, folder):
    assert get_user_folder(platform, environment).as_posix() == folder
