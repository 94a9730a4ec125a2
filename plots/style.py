"""What the figures share: the look, and how they are written."""

import io
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from kperf.record.files import write_atomically

plt.rcParams.update({"font.size": 8, "pdf.fonttype": 42, "axes.spines.top": False, "axes.spines.right": False})

# Okabe and Ito's colours, told apart with any colour vision.
BLUE, SKY, GREEN, YELLOW = "#0072b2", "#56b4e9", "#009e73", "#f0e442"
ORANGE, VERMILION, PURPLE, GREY, BLACK = "#e69f00", "#d55e00", "#cc79a7", "#999999", "#000000"

# The hatch tells ours apart in grey print too.
IMPLEMENTATIONS = {
    "fa2": ("FA2", GREY, ""),
    "cudnn": ("cuDNN", SKY, ""),
    "fa3": ("FA3", BLUE, ""),
    "triton": ("Triton", YELLOW, ""),
    "triton_autows": ("Triton auto-WS", ORANGE, ""),
    "vanilla": ("Triton-FA3", PURPLE, "//"),
    "improved": ("Triton-FA3 Improved", VERMILION, "//"),
    "improved_plus": ("Triton-FA3 Improved+", GREEN, "//"),
    "cublas": ("cuBLAS 8192³", BLACK, ""),
}


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
