"""Machine code that parts once, read from listings as nvdisasm prints them."""

from kperf.ir.paths import parted

LISTING = """
.text.kernel:
        /*0000*/                   S2UR UR6, SR_CTAID.X ;
        /*0010*/                   ISETP.LT.U32.AND P0, PT, R1, 0x7, PT ;
        /*0020*/               @P0 BRA `(.L_x_0) ;
        /*0030*/                   LDG.E R2, desc[UR4][R4.64] ;
        /*0040*/              @!P1 EXIT ;
        /*0050*/                   CALL.REL.NOINC `($__internal_0_$__cuda_sm20_div) ;
        /*0060*/                   BRX R4 -0x60                  (*"BRANCH_TARGETS .L_x_2,.L_x_3"*);
.L_x_2:
        /*0070*/                   STG.E desc[UR4][R4.64], R2 ;
        /*0080*/                   EXIT ;
.L_x_3:
        /*0090*/                   FADD R2, R2, 1 ;
        /*00a0*/                   BRA `(.L_x_2) ;
.L_x_0:
        /*00b0*/                   CS2R.32 R6, SR_CLOCKLO ;
        /*00c0*/                   CALL.REL.NOINC `($__internal_0_$__cuda_sm20_div) ;
        /*00d0*/                   BRA `(.L_x_2) ;
$__internal_0_$__cuda_sm20_div:
        /*00e0*/                   MUFU.RCP R7, R8 ;
        /*00f0*/                   RET.REL.NODEC R20 `(kernel) ;
.L_x_9:
        /*0100*/                   BRA `(.L_x_9) ;
"""


def opcodes(path: str) -> list[str]:
    return [line.lstrip("\t@!P01 ").split()[0].rstrip(";") for line in path.splitlines()]


def test_each_path_has_what_comes_before_and_what_both_share():
    original, instrumented = parted(LISTING)
    start, shared = ["S2UR", "ISETP.LT.U32.AND", "BRA"], ["MUFU.RCP", "RET.REL.NODEC"]
    assert opcodes(original) == [
        *start, "LDG.E", "EXIT", "CALL.REL.NOINC", "BRX", "STG.E", "EXIT", "FADD", "BRA", *shared
    ]  # fmt: skip
    assert opcodes(instrumented) == [*start, "STG.E", "EXIT", "CS2R.32", "CALL.REL.NOINC", "BRA", *shared]


def test_the_branch_may_lead_to_the_original_path_too():
    turned = LISTING.replace("CS2R.32 R6, SR_CLOCKLO", "IADD R6, R6, 1").replace("LDG.E R2,", "S2UR R2, SR_CLOCKLO //")
    original, instrumented = parted(turned)
    assert "IADD" in opcodes(original)
    assert "S2UR R2, SR_CLOCKLO" in instrumented
    assert "SR_CLOCKLO" not in original


def test_code_that_does_not_part_or_jumps_where_nobody_knows_has_no_paths():
    assert parted(LISTING.replace("CS2R.32 R6, SR_CLOCKLO", "IADD R6, R6, 1")) is None
    assert parted(LISTING.replace("LDG.E R2,", "S2UR R2, SR_GLOBALTIMERLO //")) is None
    assert parted(LISTING.replace('(*"BRANCH_TARGETS .L_x_2,.L_x_3"*)', "")) is None
    assert parted(LISTING.replace("`(.L_x_0)", "`(.L_y_0)")) is None
    assert parted("") is None
