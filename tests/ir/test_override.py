"""Somebody's compiled kernel, made again with other TTGIR."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kperf.compat.triton.cache import own_cache
from kperf.compat.triton.tools import assembler
from kperf.ir.compile import canonical_ttgir, options_of
from kperf.ir.override import Override, prove_launched, recompile
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


def test_where_torch_compile_has_named_another_assembler_an_override_still_is_what_runs(tmp_path, monkeypatch):
    """It sets TRITON_PTXAS_PATH in its process; Triton's key keeps the version it read first, its cache that cubin."""
    kernel = compiled("gemm_mma")
    put = Override(Path("gemm_mma.ttgir"), canonical_ttgir(kernel.asm["ttgir"]), kernel.name)
    with own_cache(tmp_path):
        first, by_tritons = assembler(), recompile(kernel, put)
        monkeypatch.setenv("TRITON_PTXAS_PATH", str(Path(torch.__file__).parent / "bin/ptxas"))
        assert assembler() != first
        by_torchs = recompile(kernel, put)
        assert by_torchs.asm["cubin"] != by_tritons.asm["cubin"]
        prove_launched([(put, by_torchs)])
