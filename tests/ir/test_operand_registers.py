"""Registers of an MMA's operand that are written too early, read from listings as nvdisasm prints them."""

import pytest

from kperf.ir.machine import read_machine_code
from kperf.ir.operand_registers import overwritten

LOOP = """
.text.kernel:
        /*0000*/                   MOV R40, R4 ;
.L_x_1:
        /*0010*/                   LDSM.16.M88.4 R40, [R2+UR4] ;
        /*0020*/                   WARPGROUP.ARRIVE ;
        /*0030*/                   HGMMA.64x64x16.F32.BF16 R8, R40, gdesc[UR8].tnspB, R8 ;
        /*0040*/                   HGMMA.64x64x16.F32.BF16 R24, R44, gdesc[UR12].tnspB, R24, gsb0 ;
        /*0050*/                   WARPGROUP.DEPBAR.LE gsb0, WAIT ;
        /*0060*/                   BETWEEN ;
        /*0070*/              @!P0 BRA `(.L_x_1) ;
        /*0080*/                   MOV R44, R4 ;
"""


def found(wait="0x1", between="NOP", loop=LOOP):
    code = read_machine_code(loop.replace("WAIT", wait).replace("BETWEEN", between))
    return [(one.mma.address, one.write.address, one.later) for one in overwritten(code)]


def test_a_wait_that_leaves_an_mma_in_flight_leaves_its_operand_to_be_written():
    assert found("0x1") == [(0x30, 0x10, 1)]
    assert found("0x0") == []
    # The MMA of this iteration, ahead of that of the next one.
    assert found("0x1", "IADD3 R47, R1, R2, RZ") == [(0x40, 0x60, 0), (0x30, 0x10, 1)]


@pytest.mark.parametrize(
    ("written", "is_operand"),
    [
        ("LDS.128 R44, [R2]", True),
        ("LDS.64 R42, [R2]", True),
        ("LDS.64 R48, [R2]", False),
        ("IMAD.WIDE R46, R2, R3, R4", True),
        ("SHFL.BFLY PT, R45, R1, 0x1, 0x1f", True),
        ("LDS R39, [R2]", False),
        ("LDS R48, [R2]", False),
        ("STS.128 [R44], R44", False),  # reads them
        ("STG.E desc[UR4][R44.64], R45", False),
        ("ISETP.GE.AND P1, PT, R44, R45, PT", False),
        ("R2UR UR4, R44", False),
        ("BAR.SYNC R44, R45", False),
    ],
)
def test_what_an_instruction_writes_is_known(written, is_operand):
    after_wait = LOOP.replace("LDSM.16.M88.4 R40, [R2+UR4]", "NOP")
    assert bool(found("0x1", written, after_wait)) == is_operand


def test_an_operand_in_shared_memory_and_code_outside_of_a_loop_have_none():
    shared = LOOP.replace("R8, R40, gdesc", "R8, gdesc[UR20], gdesc").replace(
        "R24, R44, gdesc", "R24, gdesc[UR20], gdesc"
    )
    assert found("0x7", loop=shared) == []
    assert found("0x7", loop=LOOP.replace("@!P0 BRA `(.L_x_1)", "NOP")) == []


def test_an_outer_loop_is_not_followed():
    """Whatever it writes comes after the inner loop, whose end a wait follows."""
    outer = LOOP.replace("/*0000*/", "/*0000*/", 1).replace(
        "        /*0000*/                   MOV R40, R4 ;", ".L_x_0:\n        /*0000*/                   MOV R40, R4 ;"
    )
    outer = outer.replace("MOV R44, R4 ;", "MOV R44, R4 ;\n        /*0090*/                   BRA `(.L_x_0) ;")
    assert found("0x0", loop=outer) == []
    assert found("0x1", loop=outer) == [(0x30, 0x10, 1)]
