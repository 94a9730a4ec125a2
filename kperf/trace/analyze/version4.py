"""Timelines of version 4: their replay and their bubbles are of one CTA, whoever shared its SM."""

from typing import Any

Json = dict[str, Any]


def upgrade(old: Json) -> Json:
    """The record of version 5. Raises LookupError, TypeError, ValueError or AttributeError."""
    replay = old.get("replay")
    return old | {
        "schema_version": 5,
        "bubbles_of": "CTA",
        "replay": replay if replay is None else replay | {"together": 1},
    }
