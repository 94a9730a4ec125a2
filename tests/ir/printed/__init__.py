"""TTGIR as each Triton prints it: `python -m tests.ir.printed` writes this interpreter's, once a version.

What reads the text is tested on all of them with any Triton, so that a changed print is a failed test.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
KERNELS = ("add", "gemm_pointers_2", "gemm_tma", "gluon_gemm")
VERSIONS = sorted((path.name for path in FOLDER.iterdir() if path.name[0].isdigit()), key=lambda v: v.split("."))


def text(version: str, kernel: str) -> str:
    return (FOLDER / version / f"{kernel}.ttgir").read_text()
