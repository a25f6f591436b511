"""Other users, whose rights only root can take."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT, NOBODY, ANOTHER = 0, 65534, 65533

as_root = pytest.mark.skipif(
    os.geteuid() != ROOT, reason="only root can become another user"
)


@contextmanager
def acting_as(user: int) -> Iterator[None]:
    """Give this process the rights of another user, none of root's."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(ROOT)
        os.setegid(ROOT)
        os.setgroups(groups)
