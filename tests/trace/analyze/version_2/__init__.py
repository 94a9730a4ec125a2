"""Timelines as version 2 wrote them, recorded on an H200 on 2026-11-22: old records stay readable."""

import gzip
from pathlib import Path

_FOLDER = Path(__file__).parent
NAMES = sorted(path.name.partition(".")[0] for path in _FOLDER.glob("*.gz"))


def text_of(name: str) -> str:
    """The JSON text of a timeline."""
    return gzip.decompress((_FOLDER / f"{name}.timeline.json.gz").read_bytes()).decode()


def unpacked(name: str, folder: Path) -> Path:
    """A timeline's file, as a run left it."""
    path = folder / f"{name}.timeline.json"
    path.write_text(text_of(name))
    return path
