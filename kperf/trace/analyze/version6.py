"""Timelines of version 6: all of one is read from one recording, of all CTAs or of a sample."""

from typing import Any

Json = dict[str, Any]


def upgrade(old: Json) -> Json:
    """The record of version 7; what each fact was read from follows from the rest."""
    return old | {"schema_version": 7}
