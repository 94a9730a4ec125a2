"""The order of instructions, plain against traced."""

import pytest
from triton import knobs

from kperf.arch import SM_100A
from kperf.attention import overrides
from kperf.attention.variants import Specialization
from kperf.errors import UsageError
from kperf.ir import compile as compiler
from kperf.ir import sass
from kperf.ir.machine import read_machine_code
from kperf.paper import instrumented
from kperf.trace.capture.traced import compile_orders
from tests.trace.kernels import compiled

LISTING = """
\t@!P0 BRA LBB0;
--:-:1:-:2\tSYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR10+0x280e0], R6;
--:-:-:-:3\tHGMMA.64x128x16.F32.BF16 R24, gdesc[UR12], RZ, !UPT;
--:-:-:-:3\tHGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24, gsb0;
--:-:-:-:2\tWARPGROUP.DEPBAR.LE gsb0, 0x1;
--:-:-:-:1\t@!P1 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR10+0x280f0], RZ;
--:-:-:-:1\tMUFU.EX2 R9, R9;
--:-:-:-:1\tMUFU.EX2 R8, R8;
--:-:-:-:1\tHGMMA.64x128x16.F32.BF16 R88, R152, gdesc[UR16].tnspB, R88;
"""


def test_reads_what_makes_up_a_schedule():
    assert sass.order(LISTING) == [
        "mbarrier wait",
        "wgmma 64x128x16 x2",
        "wait for wgmma, 1 left",
        "mbarrier arrive",
        "exp2 x2",
        "wgmma 64x128x16 B transposed",
    ]


POINTERS = """
\t@!P0 LDGSTS.E.BYPASS.128 [R35+0x10000], desc[UR14][R6.64], P0 ;
\tLDGDEPBAR ;
\tDEPBAR.LE SB0, 0x0 ;
\tBAR.SYNC.DEFER_BLOCKING 0x0 ;
\tLDSM.16.M88.4 R24, [R89+UR16] ;
\tLDS.128 R12, [R3+UR16] ;
\tHMMA.16816.F32.BF16 R24, R12.reuse, R20, R24 ;
\tSHFL.BFLY PT, R38, R37, 0x10, 0x1f ;
\tMUFU.RCP R8, R8 ;
\tREDG.E.ADD.F32x4.FTZ.RN.STRONG.GPU desc[UR18][R138.64], R24 ;
\tATOMG.E.CAS.STRONG.GPU PT, R0, [R2], R4, R5 ;
\t@!P0 STS.128 [R209+UR16+0x8000], R4 ;
\tLDG.E.128 R16, desc[UR4][R2.64] ;
\tSTG.E.128 desc[UR4][R16.64], R12 ;
\tUTMASTG.2D [UR12], [UR4] ;
"""


def test_a_kernel_without_asynchronous_products_has_a_vocabulary_of_its_own():
    assert sass.order(POINTERS) == [
        "cp.async",
        "cp.async group",
        "wait for cp.async",
        "barrier",
        "ldmatrix",
        "shared load",
        "mma.sync",
        "shuffle",
        "special function",
        "atomic x2",
        "shared store",
        "load",
        "store",
        "TMA store",
    ]


def test_products_are_told_apart_by_their_type():
    listing = """
\tQGMMA.64x128x32.F32.E4M3.E4M3 R88, gdesc[UR8], R88 ;
\tIGMMA.64x128x32.S8.S8 R88, gdesc[UR8], R88 ;
"""
    assert sass.order(listing) == ["fp8 wgmma 64x128x32", "int8 wgmma 64x128x32"]


def test_a_record_is_no_part_of_the_order():
    original = "\tLDG.E R5, desc[UR14][R2.64] ;\n\tMUFU.EX2 R9, R9 ;\n\tMUFU.EX2 R8, R8 ;\n"
    first, second, third = original.splitlines(keepends=True)
    record = "\tCS2R.32 R23, SR_CLOCKLO ;\n\t@P0 STS.64 [UR8], R22 ;\n"
    in_memory = "\tCS2R.32 R9, SR_CLOCKLO ;\n\t@P0 STG.E.64.STRONG.GPU desc[UR4][R4.64+0x38], R8 ;\n"
    traced = first + record + second + in_memory + third
    assert sass.order(traced) == sass.order(original)
    assert (
        sass.compare(sass.order(original), sass.order(traced + "\tBAR.SYNC 0x0 ;\n\tSTG.E desc[UR4][R2.64], R5 ;\n"))
        == []
    )
    assert sass.compare(sass.order(original), sass.order(second + third + first))


def test_says_where_two_orders_differ():
    original = ["mbarrier wait", "exp2 x66", "wgmma 64x128x16 x8"]
    assert sass.compare(original, original) == []
    moved = sass.compare(original, ["exp2 x66", "mbarrier wait", "wgmma 64x128x16 x8"])
    assert {(d.original, d.instrumented) for d in moved} == {("", "exp2 x66"), ("exp2 x66", "")}


@pytest.mark.kernels
def test_records_of_their_own_add_nothing_to_the_order():
    original = overrides.find("vanilla", Specialization())
    orders = compile_orders(instrumented.subject_of(original), instrumented.find(original)[0])
    for name in ("wgmma 64x128x16 x8", "wgmma 64x128x16 B transposed x8", "TMA load x2"):
        assert orders.original.count(name) == orders.instrumented.count(name) > 0


@pytest.mark.kernels
def test_all_of_the_code_is_read_though_it_is_longer_than_64_kb():
    kernel = overrides.find("improved_plus", Specialization()).compile()
    listing = compiler.sass(kernel)
    assert listing.count("\n") * 16 > 1 << 16
    assert listing.count("HGMMA") == kernel.asm["ptx"].count("wgmma.mma_async")
    found = sass.order(listing)
    assert (
        found.count("wgmma 64x128x16 x8") > found.count("wgmma 64x128x16 B transposed x8") > 0
    )  # the first QK of all has no PV beside it


def test_a_listing_in_the_cache_that_is_no_text_is_made_again(tmp_path):
    kernel = compiled("gemm_mma")
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path)
        whole = compiler.sass(kernel)
        (listing,) = tmp_path.rglob("nvdisasm-*")
        kept = listing.read_bytes()
        listing.write_bytes(kept[:100] + bytes([0xFF]) + kept[101:])  # as when the power fails
        assert compiler.sass(kernel) == whole
        assert listing.read_bytes() == kept


@pytest.mark.kernels
def test_a_cubin_is_taken_apart_once_and_another_one_anew(tmp_path, monkeypatch):
    vanilla, improved = (overrides.find(name, Specialization()).compile() for name in ("vanilla", "improved"))
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path)
        first = compiler.sass(vanilla)
        (tmp_path / "nvdisasm").symlink_to("/bin/false")
        monkeypatch.setattr(compiler, "binary_tool", lambda name: tmp_path / name)
        assert compiler.sass(vanilla) == first
        assert len(compiler.machine_code(vanilla).instructions) == first.count("\n")
        assert first.count("HGMMA") == vanilla.asm["ptx"].count("wgmma.mma_async")
        with pytest.raises(UsageError, match="a cubin is cut short"):  # of this one nothing is known
            compiler.sass(improved)
        (listing,) = tmp_path.rglob("nvdisasm-*")
        whole = listing.read_text()
        for left in ("", whole[: len(whole) // 2], whole.replace("HGMMA", "HFMA", 1)):  # as when the power fails
            listing.write_text(left)
            with pytest.raises(UsageError, match="a cubin is cut short"):
                compiler.sass(vanilla)


def test_blackwells_schedule_has_words_of_its_own():
    listing = """
\tUTCHMMA gdesc[UR8], gdesc[UR10], tmem[UR4], tmem[UR12], idesc[UR13], !UPT ;
\tUTCHMMA gdesc[UR14], gdesc[UR16], tmem[UR4], tmem[UR12], idesc[UR13], UPT ;
\tUTCBAR [UR6], URZ ;
\tSYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR10+0x280e0], R6 ;
\tLDTM.x128 R4, tmem[UR4] ;
\tLDS.128 R12, [R3+UR16] ;
\tMUFU.EX2 R9, R9 ;
\tSTTM.x64 tmem[UR4], R4 ;
"""
    assert sass.order(listing, SM_100A) == [
        "tcgen05 x2",
        "tcgen05 commit",
        "mbarrier wait",
        "tensor memory load",
        "exp2",
        "tensor memory store",
    ]


def test_an_opcode_is_whole_where_it_has_small_letters():
    listing = (
        ".section .text.k\n"
        "        /*0100*/              @!P0 HGMMA.64x128x16.F32.BF16 R24, gdesc[UR12], RZ, !UPT ;\n"
        "        /*0110*/                   LDGSTS.E.BYPASS.LTC128B.128 [R3+0x10], desc[UR4][R6.64] ;\n"
        "        /*0120*/                   EXIT ;\n"
    )
    found = [(one.predicate, one.opcode, one.operands) for one in read_machine_code(listing).instructions]
    assert found == [
        ("@!P0", "HGMMA.64x128x16.F32.BF16", "R24, gdesc[UR12], RZ, !UPT"),
        ("", "LDGSTS.E.BYPASS.LTC128B.128", "[R3+0x10], desc[UR4][R6.64]"),
        ("", "EXIT", ""),
    ]
