"""Timelines of version 5: they know nothing of samples."""

from typing import Any

Json = dict[str, Any]


def upgrade(old: Json) -> Json:
    """The record of version 6."""
    return old | {"schema_version": 6}
