"""Somebody's compiled kernel, made again with other TTGIR."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from kperf.ir.override import options_of
from tests.trace.kernels import compiled


@pytest.mark.parametrize("name", ["libdevice", "mine"])
def test_a_library_that_lies_elsewhere_by_now_is_the_installed_one(name, tmp_path):
    """Triton's cache is asked by content: what it answers with may name the files of an installation that is gone."""
    there = tmp_path / "own.bc"
    there.write_bytes(b"its bitcode")
    kernel = compiled("calls")
    libraries = [[name, str(tmp_path / "gone.bc")], ["other", str(there)]]
    as_read = SimpleNamespace(metadata=kernel.metadata._replace(extern_libs=libraries), asm=kernel.asm)
    found = options_of(as_read)["extern_libs"]
    assert found["other"] == str(there)
    assert Path(found[name]).is_file() == (name == "libdevice")
