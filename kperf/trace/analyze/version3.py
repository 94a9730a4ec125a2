"""Timelines of version 3: they say what version 4 says, in other words."""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

_DUTIES = {"products": "MMAs", "products and loads": "MMAs and loads"}
_REGION = {"per_trip": "per_iteration", "own_cycles": "self_cycles"}
_OVERHEAD = {"plain_ms": "original_ms", "traced_ms": "instrumented_ms"}


def upgrade(old: Json) -> Json:
    """The record of version 4. Raises LookupError, TypeError, ValueError or AttributeError."""
    new = _renamed(
        old,
        {
            "blocks_per_sm": "ctas_per_sm",
            "blocks": "ctas",
            "period_cycles": "cycles_per_unit",
            "graph": "replay",
            "records": "events",
        },
    )
    changed: Json = {
        "schema_version": 4,
        "unit": {"trip": "iteration", "block": "CTA"}.get(old["unit"], old["unit"]),
        "overhead": _renamed(old["overhead"], _OVERHEAD),
        "passes": [_pass(record) for record in old["passes"]],
        "roles": [role | {"duty": _DUTIES.get(role["duty"], role["duty"])} for role in old["roles"]],
        "regions": [_renamed(record, _REGION) for record in old["regions"]],
        "windows": [_window(window) for window in old["windows"]],
    }
    parts = {
        "resources": lambda part: _renamed(part, {"plain": "original", "twin": "instrumented"}),
        "arithmetic": lambda part: _renamed(
            part, {"under_own_products": "under_own_mmas", "under_any_products": "under_any_mmas"}
        ),
        "replay": lambda part: _renamed(part, {"blocks": "ctas"}),
        "sms": lambda part: _renamed(part, {"running_blocks": "running_ctas"}),
        "memory": lambda part: part | {"waits": [_wait(wait) for wait in part["waits"]]},
        "imbalance": lambda part: (
            _renamed(part, {"trips": "iterations", "block_us": "cta_us"})
            | {"slowest": _renamed(part["slowest"], {"trips": "iterations"})}
        ),
        "joined": lambda part: (
            _renamed(part, {"period_pass": "iteration_pass", "plain_cycles": "original_cycles"})
            | {"one_pass": _pass(part["one_pass"])}
        ),
        "apart": lambda part: part | {"passes": [_pass(record) for record in part["passes"]]},
    }
    changed |= {name: upgraded(new[name]) for name, upgraded in parts.items() if new.get(name) is not None}
    return new | changed


def _renamed(old: Json, names: Mapping[str, str]) -> Json:
    return {names.get(name, name): value for name, value in old.items()}


def _pass(old: Json) -> Json:
    new = _renamed(old, {"records_a_trip": "events_per_iteration", "trip_cycles": "iteration_cycles"})
    return new | {
        "overhead": _renamed(old["overhead"], _OVERHEAD),
        "sass_order": _renamed(old["sass_order"], {"plain": "original", "traced": "instrumented"}),
    }


def _window(old: Json) -> Json:
    shows = {"trips": "iterations", "block": "CTA"}.get(old["shows"], old["shows"])
    return old | {"shows": shows, "bars": [_bar(bar) for bar in old["bars"]]}


def _bar(old: Json) -> Json:
    track = "MMAs" if old["track"] == "products" else old["track"]
    return _renamed(old, {"trip": "iteration"}) | {"track": track}


def _wait(old: Json) -> Json:
    return old | {"doing": "MMAs" if old["doing"] == "products" else old["doing"]}
