"""What the figures share: the look, and how they are written."""

import io
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from kperf.attention.implementations import IMPLEMENTATIONS
from kperf.attention.look import Look
from kperf.record.files import write_atomically

plt.rcParams.update({"font.size": 8, "pdf.fonttype": 42, "axes.spines.top": False, "axes.spines.right": False})

# Okabe and Ito's colours, told apart with any colour vision.
BLUE, SKY, GREEN, YELLOW = "#0072b2", "#56b4e9", "#009e73", "#f0e442"
ORANGE, VERMILION, PURPLE, GREY, BLACK = "#e69f00", "#d55e00", "#cc79a7", "#999999", "#000000"

CUBLAS = "cublas"
"""The key under which `make power` records cuBLAS's product, which is no attention and no implementation of it."""


def label_and_look(key: str) -> tuple[str, Look]:
    """What an implementation is called and how its bar is drawn, from where it is registered."""
    if key == CUBLAS:
        return "cuBLAS 8192³", Look(BLACK)
    item = IMPLEMENTATIONS[key]
    assert item.look is not None, f"{key} has no bar"
    return item.label, item.look


def save(figure: Figure, out: Path) -> list[Path]:
    """Write `out` as PDF and PNG, whole or not at all and the same bytes for the same figure; closes it."""
    written = []
    for suffix, metadata in (("pdf", {"CreationDate": None}), ("png", {"Software": None})):
        path = out.with_suffix(f".{suffix}")
        content = io.BytesIO()
        figure.savefig(content, format=suffix, dpi=200, metadata=metadata)
        write_atomically(path, content.getvalue())
        written.append(path)
    plt.close(figure)
    return written
