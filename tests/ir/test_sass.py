"""The order of instructions, plain against traced."""

from kperf.attention import overrides
from kperf.attention.variants import Specialization
from kperf.ir import compile as compiler
from kperf.ir import sass
from kperf.paper import twins
from kperf.trace.launch.subject import compile_orders

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
        "QK wgmma x2",
        "wait for wgmma, 1 left",
        "mbarrier arrive",
        "exp2 x2",
        "PV wgmma",
    ]


def test_says_where_two_orders_differ():
    plain = ["mbarrier wait", "exp2 x66", "PV wgmma x8"]
    assert sass.compare(plain, plain) == []
    moved = sass.compare(plain, ["exp2 x66", "mbarrier wait", "PV wgmma x8"])
    assert {(d.plain, d.traced) for d in moved} == {("", "exp2 x66"), ("exp2 x66", "")}


def test_records_of_their_own_add_nothing_to_the_order():
    plain = overrides.find("vanilla", Specialization())
    orders = compile_orders(twins.subject_of(plain), twins.find(plain)[0])
    for name in ("QK wgmma x8", "PV wgmma x8", "TMA load x2"):
        assert orders.plain.count(name) == orders.traced.count(name) > 0


def test_all_of_the_code_is_read_though_it_is_longer_than_64_kb():
    kernel = overrides.find("improved_plus", Specialization()).compile()
    listing = compiler.sass(kernel)
    assert listing.count("\n") * 16 > 1 << 16
    assert listing.count("HGMMA") == kernel.asm["ptx"].count("wgmma.mma_async")
    found = sass.order(listing)
    assert found.count("QK wgmma x8") > found.count("PV wgmma x8") > 0  # the first QK of all has no PV beside it
