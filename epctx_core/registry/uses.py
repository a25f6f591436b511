"""Who uses which EP at this moment, so that none is taken away under a session. Knows neither classes nor sessions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epctx_core.registry.records import RecordKey


class Uses:
    """Remembers users by EP; callable from any thread.

    Takes no lock: a session may end within any allocation, when the collector finds it, and each change
    here is a single step of one list.
    """

    def __init__(self) -> None:
        """Begin with no user."""
        self._users: dict[RecordKey, list[str]] = {}

    @contextmanager
    def held(self, key: RecordKey, by: str) -> Iterator[None]:
        """Count a user while the block lasts.

        Args:
            key: of the EP's record.
            by: who, for messages: `a session of 'resnet'`.
        """
        users = self._users.setdefault(key, [])
        users.append(by)
        try:
            yield
        finally:
            users.remove(by)

    def of(self, key: RecordKey) -> list[str]:
        """Return who uses an EP, equal users once with their number."""
        users = list(self._users.get(key, ()))
        counts = {user: users.count(user) for user in users}
        return [user if count == 1 else f"{user} ({count} times)" for user, count in counts.items()]
