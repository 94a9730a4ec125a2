"""Where operations and instructions come from: texts by hand, and kernels compiled with their helpers inlined."""

import inspect
import sys
from pathlib import Path

import pytest
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from kperf.ir import locations
from kperf.ir.compile import canonical_ttgir, compile_kernel, machine_code, named_ttgir
from kperf.ir.locations import UNKNOWN, Frame, Location
from kperf.ir.machine import read_machine_code
from kperf.ir.ttgir import Module


@triton.jit
def squash(values, scale):
    return tl.sigmoid(values * scale)  # helper


@triton.jit
def twice(values):
    return squash(values, 2.0)  # middle


@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        part = tl.load(x_ptr + i, mask=i < n, other=0.0)  # load
        total += twice(part)  # call
    tl.store(out_ptr, tl.sum(total, 0))  # reduce


def line_of(mark: str) -> int:
    lines = inspect.getsource(sys.modules[__name__]).splitlines()
    (number,) = (n for n, text in enumerate(lines, 1) if text.endswith(f"  # {mark}"))
    return number


@pytest.fixture(scope="module")
def compiled():
    signature = {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    return compile_kernel(kernel, signature, {"BLOCK": 256})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"/a/k.py":3:7', Location((Frame("/a/k.py", 3, 7),))),
        ('"/a/k.py":3:7 to :9', Location((Frame("/a/k.py", 3, 7),))),
        ('"/a/k.py":3:7 to 4:1', Location((Frame("/a/k.py", 3, 7),))),
        ('"acc"("k.py":3:7)', Location((Frame("k.py", 3, 7),), ("acc",))),
        ('"acc"', Location((), ("acc",))),
        ("unknown", UNKNOWN),
        (
            'callsite("f"("a.py":1:2) at callsite("b.py":3:4 at "acc"("c.py":5:6)))',
            Location((Frame("a.py", 1, 2), Frame("b.py", 3, 4), Frame("c.py", 5, 6)), ("f",)),
        ),
        (
            'fused<#di>[unknown, "a.py":1:2, "x"("b.py":3:4)]',
            Location((Frame("a.py", 1, 2),), (), (Location((Frame("b.py", 3, 4),), ("x",)),)),
        ),
        ('fused<{a = "]", b = <1>}>["a.py":1:2]', Location((Frame("a.py", 1, 2),))),
        (r'"/a (b)/\"k\C3\A9.py":3:7', Location((Frame('/a (b)/"ké.py', 3, 7),))),
        ("#loc4", Location((Frame("s.py", 43, 17), Frame("k.py", 10, 20)), ("inner",))),
        ("#loc9", UNKNOWN),  # defined nowhere
        ("#loop", UNKNOWN),
        ('callsite("a.py":1:2', UNKNOWN),
        ("", UNKNOWN),
        ("what is this", UNKNOWN),
    ],
)
def test_reads_what_mlir_prints(text, expected):
    aliases = {
        "#loc2": '"s.py":43:17',
        "#loc3": 'callsite(#loc2 at "nn"("k.py":10:20))',
        "#loc4": '"inner"(#loc3)',
        "#loop": '"x"(#loop)',
    }
    assert locations.read(text, aliases) == expected


def test_the_frame_is_the_innermost_that_a_user_wrote():
    library = Frame("/site-packages/triton/language/standard.py", 43, 17)
    user = Frame("/home/me/kernels/triton_language.py", 9, 3)
    assert Location((library, user, Frame("/x.py", 1))).frame == user
    assert Location((library,)).frame == library
    assert UNKNOWN.frame is None


TEXT = """#blocked = #ttg.blocked<{order = [0]}>
#loc = loc("/a (b)/k.py":1:0)
#loc5 = loc("x"(#loc))
module attributes {"ttg.num-warps" = 4 : i32} {
  tt.func public @f(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("x"(#loc)), %n: i32 loc("n"(#loc))) attributes {noinline = false} {
    %0 = tt.get_program_id x : i32 loc("/a (b)/k.py":2:4)
    tt.assert %0, "at loc(here)" : i32 loc(callsite("/s (x).py":7:1 at #loc1))
    %1 = "tt.reduce"(%2) <{axis = 0 : i32}> ({
    ^bb0(%a: f32 loc(#loc1), %b: f32 loc(unknown)):
      %3 = arith.addf %a, %b : f32 loc(#loc1)
      tt.reduce.return %3 : f32
    }) : (tensor<128xf32>) -> f32 loc(fused["/a (b)/k.py":4:1, #loc1])
    scf.if %4 {
      tt.store %x, %1 : !tt.ptr<f32> loc(#loc1)
    } else {
    } loc(#loc1)
    tt.return loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc1 = loc("/a (b)/k.py":3:8)
"""  # noqa: E501


def test_every_operation_of_a_text_knows_its_line():
    module = Module(TEXT)
    found = {op.name: op.location for op in module.walk()}
    assert {name: location and location.frame and location.frame.line for name, location in found.items()} == {
        "tt.func": 1,
        "tt.get_program_id": 2,
        "tt.assert": 7,
        "tt.reduce": 4,
        "arith.addf": 3,
        "tt.reduce.return": None,
        "scf.if": 3,
        "tt.store": 3,
        "tt.return": 1,
    }
    assert [frame.line for frame in found["tt.assert"].frames] == [7, 3]
    assert [one.frame.line for one in found["tt.reduce"].fused] == [3]
    assert module.arguments == ("%x", "%n")
    assert next(op for op in module.walk() if op.name == "tt.assert").rest == ' %0, "at loc(here)" : i32'


def test_a_text_without_its_locations_is_the_same_module():
    bare = locations.strip(TEXT)
    assert "#loc" not in bare
    assert 'tt.assert %0, "at loc(here)" : i32\n' in bare
    one, other = Module(TEXT), Module(bare)
    assert [(op.name, op.results, op.rest) for op in one.walk()] == [
        (op.name, op.results, op.rest) for op in other.walk()
    ]
    assert all(op.location is None for op in other.walk())


@given(st.text(alphabet=' "()[]<>,:#1ablocrenfusdtit\\', max_size=40))
@settings(max_examples=200)
def test_damaged_locations_are_unknown(text):
    assert isinstance(locations.read(text, {"#a": text}), Location)
    bare, found = locations.split(f"x loc({text})\n#a = loc({text})")
    assert len(bare) == len(found)


def test_a_compiled_kernel_knows_its_lines(compiled):
    module = Module(compiled.asm["ttgir"])

    def lines(name):
        return {op.location.frame.line for op in module.walk() if op.name == name}

    assert lines("tt.load") == {line_of("load")}
    assert lines("tt.store") == {line_of("reduce")}
    assert lines("tt.reduce") == {line_of("reduce")}  # in Triton's library, called here
    exp = next(op for op in module.walk() if op.name == "math.exp")
    here = Path(__file__).name  # in Triton's cache another checkout's folder may stand before it
    stack = [(frame.line, Path(frame.file).name == here) for frame in exp.location.frames]
    assert stack[-3:] == [(line_of("helper"), True), (line_of("middle"), True), (line_of("call"), True)]
    assert len(stack) > 3
    assert exp.location.frame.line == line_of("helper")
    load = next(op for op in module.walk() if op.name == "tt.load")
    assert load.location.names == ("part",)


def test_names_and_canonical_text_are_as_without_locations(compiled):
    text = compiled.asm["ttgir"]
    named = named_ttgir(text)
    assert "loc(" not in named
    assert "%part" in named
    assert canonical_ttgir(named) == canonical_ttgir(text)
    located, bare = Module(text), Module(named)
    assert [(op.name, op.results, op.rest) for op in located.walk()] == [
        (op.name, op.results, op.rest) for op in bare.walk()
    ]


def test_machine_code_knows_its_lines_and_loops(compiled):
    code = machine_code(compiled)

    def lines(opcode):
        return {i.frame.line for i in code.instructions if i.opcode.startswith(opcode)}

    assert lines("LDG") == {line_of("load")}
    assert lines("STG") == {line_of("reduce")}
    exponentials = [i for i in code.instructions if i.opcode.startswith("MUFU.EX2")]
    assert exponentials
    assert all(i.frame.in_library for i in exponentials)  # ptxas keeps no call around it
    load = next(i for i in code.instructions if i.opcode.startswith("LDG"))
    store = next(i for i in code.instructions if i.opcode.startswith("STG"))
    assert code.depth(load) >= 1
    assert code.depth(store) == 0


LISTING = """
.text.other:
        /*0000*/                   EXIT ;
\t.section\t.text.f,"ax",@progbits
.text.f:
\t//## File "/h.py", line 3 inlined at "/k.py", line 9
\t//## File "/k.py", line 9
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 BRA `(.L_x_2) ;
.L_x_0:
\t//## File "/k.py", line 11
        /*0020*/                   IADD3 R0, R0, 0x1, RZ ;
.L_x_1:
        /*0030*/                   MUFU.EX2 R9, R9 ;
        /*0040*/               @P1 BRA `(.L_x_1) ;
        /*0050*/         @!UP1 UMOV UR4, 0x400 ;
        /*0060*/               @P2 BRA `(.L_x_0) ;
.L_x_2:
        /*0070*/                   EXIT ;
.L_x_3:
        /*0080*/                   BRA `(.L_x_3);
        /*0090*/                   NOP;
"""


def test_reads_a_listing_with_calls_and_nested_loops():
    code = read_machine_code(LISTING, "f")
    assert [i.opcode for i in code.instructions] == [
        "LDC", "BRA", "IADD3", "MUFU.EX2", "BRA", "UMOV", "BRA", "EXIT", "BRA", "NOP",
    ]  # fmt: skip
    assert code.loops == ((0x20, 0x60), (0x30, 0x40))
    assert [code.depth(i) for i in code.instructions] == [0, 0, 1, 2, 2, 1, 1, 0, 0, 0]
    first, _, third = code.instructions[:3]
    assert first.frames == (Frame("/h.py", 3), Frame("/k.py", 9))
    assert third.frames == (Frame("/k.py", 11),)
    assert (code.instructions[5].predicate, code.instructions[5].operands) == ("@!UP1", "UR4, 0x400")
    assert len(read_machine_code(LISTING).instructions) == 11
