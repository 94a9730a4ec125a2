import hashlib
import json
import shutil

import pytest
import triton
from triton.compiler import ASTSource
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import tma

from kperf.arch import SM_90A
from kperf.attention import overrides as override
from kperf.attention.kernels.attn_fwd import attn_fwd
from kperf.attention.schedule import schedule
from kperf.attention.variants import VARIANTS, Specialization
from kperf.compat.triton.cache import own_cache
from kperf.errors import MeasurementError, UsageError
from kperf.ir import override as any_kernel
from kperf.ir.compile import canonical_ttgir, compile_kernel, resources, ttgir_of_source
from kperf.ir.ttgir import Module
from kperf.paper import instrumented
from kperf.trace.instrument.session import session
from tests.trace.kernels import CASES, compile_case

pytestmark = pytest.mark.kernels

FULL = Specialization()
EVERY = [(variant.name, special) for variant in VARIANTS.values() for special in variant.specializations]


@pytest.fixture
def root(tmp_path):
    shutil.copytree(override.TTGIR_DIR, tmp_path / "ttgir")
    return tmp_path / "ttgir"


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_committed_files_are_generated_byte_for_byte(variant, tmp_path):
    override.generate(VARIANTS[variant], tmp_path)
    generated = {path.name: path.read_text() for path in (tmp_path / variant).iterdir()}
    committed = {path.name: path.read_text() for path in (override.TTGIR_DIR / variant).iterdir() if path.is_file()}
    assert generated == committed


@pytest.mark.parametrize(("variant", "special"), EVERY)
def test_each_override_compiles_to_what_it_promises(variant, special):
    found = override.verify(override.find(variant, special))
    assert found.schedule == VARIANTS[variant].schedule
    assert found.wgmma > 0
    assert found.spilled_bytes == 0
    assert found.registers == 168  # 65,536 registers of an SM over 12 warps, rounded down to 8
    assert found.shared_bytes <= 232_448


@pytest.mark.parametrize(("variant", "special"), EVERY)
def test_no_file_carries_a_location_or_a_path(variant, special):
    text = override.find(variant, special).text
    assert "loc(" not in text
    assert ".py" not in text


def test_the_schedules_are_told_apart_by_structure():
    texts = {name: override.find(name, FULL).text for name in ("vanilla", "improved")}
    assert schedule(Module(texts["vanilla"])) == "in_order"
    assert schedule(Module(texts["improved"])) == "qk_ahead"


def test_swapped_files_are_found_out(root):
    name = FULL.file_name
    vanilla, improved = root / "vanilla" / name, root / "improved" / name
    texts = vanilla.read_text(), improved.read_text()
    vanilla.write_text(texts[1])
    with pytest.raises(UsageError, match="was edited"):
        override.find("vanilla", FULL, root)
    swapped = override.from_file(vanilla, override.find("vanilla", FULL))
    with pytest.raises(MeasurementError, match="promises in_order and is qk_ahead"):
        override.verify(swapped)


def test_the_plain_kernel_compiles_alone_and_is_not_the_override():
    kernel = compile_kernel(attn_fwd, FULL.signature(), FULL.constexprs())
    assert resources(kernel).shared_bytes <= 232_448
    assert resources(kernel).spilled_bytes == 0
    with pytest.raises(MeasurementError, match="was not put in place"):
        override.find("improved", FULL).prove(kernel)


def test_an_edited_file_is_refused_and_never_served_stale(root):
    path = root / "improved" / FULL.file_name
    plain = override.find("improved", FULL, root)
    first = plain.compile()
    path.write_text(path.read_text().replace("0.693147182", "5.000000e-01"))  # log-sum-exp in other units
    with pytest.raises(UsageError, match="was edited"):
        override.find("improved", FULL, root)
    edited = override.from_file(path, plain)
    assert edited.sha256 != plain.sha256
    assert edited.place() != plain.place()
    second = edited.compile()
    assert second.asm["ttgir"] != first.asm["ttgir"]
    assert plain.compile().asm["ttgir"] == first.asm["ttgir"]
    without = compile_kernel(attn_fwd, FULL.signature(), FULL.constexprs())
    assert "ttg.warp_specialize" not in without.asm["ttgir"]


def test_a_tampered_copy_in_the_cache_is_replaced(tmp_path):
    found = override.find("vanilla", FULL)
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path)
        found.place().write_text("tampered")
        assert found.place().read_text() == found.text


def spoil(root, **changes):
    path = root / "vanilla" / "manifest.json"
    record = json.loads(path.read_text())
    entry = record["overrides"][0]
    for key, value in changes.items():
        (record if key in record else entry)[key] = value
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"triton": "3.5.0"}, "is for Triton 3.5.0"),
        ({"kernel": "matmul"}, "kernel 'matmul', not 'attn_fwd'"),
        ({"variant": "improved"}, "variant 'improved', not 'vanilla'"),
        ({"schema_version": 2}, "is not a manifest (schema_version: Input should be 1)"),
        ({"signature": {}}, "signature {}, not"),
        ({"grid": "sideways"}, "is not a manifest"),
    ],
)
def test_a_manifest_that_does_not_fit_is_one_sentence(root, changes, words):
    spoil(root, **changes)
    with pytest.raises(UsageError) as raised:
        override.find("vanilla", FULL, root)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("file", "d128_bf16_causal.ttgir"),
        ("q_box", [128, 128]),
        ("kv_box", [64, 128]),
        ("schedule", "qk_ahead"),
        ("signature", {}),
        ("head_dim", 64),
        ("causal", True),
        ("label", "Improved"),
        ("target", "sm_80"),
        ("generator", "by hand"),
        ("grid", "persistent"),
        ("tile_rows", 64),
    ],
)
def test_every_field_of_a_manifest_is_held_against_the_definition(root, field, value):
    spoil(root, **{field: value})
    with pytest.raises(UsageError, match=r"`make ttgir` writes it anew$"):
        override.find("vanilla", FULL, root)


@pytest.mark.parametrize(("field", "value"), [("num_warps", 4), ("shared_bytes", 1024)])
def test_what_only_compiling_shows_is_held_against_the_manifest(root, field, value):
    spoil(root, **{field: value})
    with pytest.raises(MeasurementError, match=f"says {field} {value}, and it compiles to"):
        override.verify(override.find("vanilla", FULL, root))


def replace_with(root, text):
    """`text` in the place of vanilla's, its hash mended."""
    (root / "vanilla" / FULL.file_name).write_text(text)
    spoil(root, sha256=hashlib.sha256(text.encode()).hexdigest())


def test_swapped_variants_with_edited_manifests_are_found_out(root):
    replace_with(root, override.find("improved", FULL).text)
    with pytest.raises(MeasurementError, match="promises in_order and is qk_ahead"):
        override.verify(override.find("vanilla", FULL, root))
    spoil(root, schedule="qk_ahead")
    with pytest.raises(UsageError, match="schedule 'qk_ahead', not 'in_order'"):
        override.find("vanilla", FULL, root)


def test_a_wrong_constant_with_the_hash_mended_is_found_out(root):
    replace_with(root, override.find("vanilla", FULL).text.replace("1.44269502", "1.44269490"))
    found = override.find("vanilla", FULL, root)
    override.verify(found)  # compiles as promised
    with pytest.raises(MeasurementError, match=r"is not what kperf/attention/kernels/vanilla\.py compiles to"):
        override.check_source(found)


def test_the_text_of_a_source_is_what_it_compiles_to(tmp_path):
    """Lowered alone, kept, and damaged where it is kept."""
    variant = VARIANTS["vanilla"]
    constexprs = variant.constexprs(FULL)
    of = (variant.kernel, FULL.gluon_signature(constexprs), constexprs)
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path)
        lowered = ttgir_of_source(*of)
        (kept,) = tmp_path.glob("*/canonical-ttgir")
        assert ttgir_of_source(*of) == lowered
        kept.write_text(kept.read_text().replace("1.44269502", "1.44269490"))
        assert ttgir_of_source(*of) == lowered
    assert canonical_ttgir(compile_kernel(*of).asm["ttgir"]) == lowered


def test_a_manifest_lists_each_file_once(root):
    path = root / "vanilla" / "manifest.json"
    record = json.loads(path.read_text())
    for overrides in (record["overrides"][:1], record["overrides"][:1] * 2, [*record["overrides"]] * 2):
        path.write_text(json.dumps(record | {"overrides": overrides}))
        with pytest.raises(UsageError, match="each once"):
            override.find("vanilla", FULL, root)


@pytest.fixture(scope="module")
def vanillas_cache(tmp_path_factory):
    """A cache that holds vanilla alone."""
    folder = tmp_path_factory.mktemp("cache")
    with own_cache(folder):
        override.find("vanilla", FULL).compile()
    return folder


def test_a_cubin_that_was_swapped_in_the_cache_is_not_what_ran(vanillas_cache):
    another = override.find("improved", FULL).compile().asm["cubin"]
    (cubin,) = vanillas_cache.glob(f"*/{attn_fwd.__name__}.cubin")
    own = cubin.read_bytes()
    with own_cache(vanillas_cache):
        found = override.find("vanilla", FULL)
        any_kernel.prove_launched([(found, found.compile())])
        cubin.write_bytes(another)
        again = override.find("vanilla", FULL)
        swapped = again.compile()  # its TTGIR is right
        cubin.write_bytes(own)
        assert swapped.asm["cubin"] == another
        with pytest.raises(MeasurementError, match=f"Triton's cache {vanillas_cache} holds another under its name"):
            any_kernel.prove_launched([(again, swapped)])


def test_what_is_compiled_apart_is_in_no_dump_of_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_KERNEL_DUMP", "1")
    monkeypatch.setenv("TRITON_DUMP_DIR", str(tmp_path / "dump"))
    with own_cache(tmp_path / "cache"):
        compile_case(CASES["add"])
    assert (tmp_path / "cache").exists()
    assert not (tmp_path / "dump").exists()


@pytest.mark.parametrize("name", ["attn_fwd.cubin", "attn_fwd.json", "__grp__attn_fwd.json"])
@pytest.mark.parametrize("share", [0, 2])
def test_a_damaged_cache_is_one_sentence(vanillas_cache, name, share):
    (path,) = vanillas_cache.glob(f"*/{name}")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // share] if share else b"")
    damaged = f"Triton's cache {vanillas_cache} is damaged .*: remove that folder"
    with own_cache(vanillas_cache), pytest.raises(UsageError, match=damaged):
        override.verify(override.find("vanilla", FULL))
    path.write_bytes(content)
    with own_cache(vanillas_cache):
        override.verify(override.find("vanilla", FULL))


def test_the_interpreter_is_refused(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # set as an attribute, it would hide the variable ever after
    with pytest.raises(UsageError, match="TRITON_INTERPRET is set"):
        override.find("vanilla", FULL).compile()


def test_a_traced_kernel_is_proven_by_its_machine_code_too():
    plain = override.find("vanilla", FULL)
    traced, _ = instrumented.find(plain)
    with_events = plain.replaced(plain.path, traced.text)
    with session(traced.recording):
        any_kernel.prove_launched([(with_events, with_events.compile())])


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"overrides": 3}'])
def test_a_broken_manifest_is_one_sentence(root, content):
    (root / "vanilla" / "manifest.json").write_text(content)
    with pytest.raises(UsageError, match="is not a manifest"):
        override.find("vanilla", FULL, root)


def test_missing_things_are_one_sentence(root):
    with pytest.raises(UsageError, match="unknown variant 'fast': choose from vanilla"):
        override.find("fast", FULL, root)
    with pytest.raises(UsageError, match="has no override for d64_fp16"):
        override.find("vanilla", Specialization(64, "float16"), root)
    (root / "vanilla" / FULL.file_name).unlink()
    with pytest.raises(UsageError, match="is missing"):
        override.find("vanilla", FULL, root)
    shutil.rmtree(root / "improved")
    with pytest.raises(UsageError, match="is missing"):
        override.find("improved", FULL, root)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("tensordesc<tensor<64x128xbf16", "tensordesc<tensor<32x128xbf16", "descriptor boxes"),
        ("@attn_fwd(", "@other(", "holds the kernel other"),
        ("tt.return", "", ""),
        ("ttg.warp_specialize", "ttg.warp_generalise", ""),
    ],
)
def test_a_persons_own_file_that_does_not_fit_is_one_sentence(tmp_path, old, new, words):
    like = override.find("vanilla", FULL)
    path = tmp_path / "mine.ttgir"
    path.write_text(like.text.replace(old, new))
    with pytest.raises(UsageError) as raised:
        override.from_file(path, like).compile()
    assert words in str(raised.value)


def test_what_cannot_be_staged_there_is_one_sentence(tmp_path):
    (tmp_path / "a file").touch()
    with pytest.raises(UsageError, match=r"a file/\w+ cannot be made: Not a directory"):
        override.stage(override.find("vanilla", FULL), tmp_path / "a file")


def test_stock_triton_picks_a_staged_override_up(tmp_path):
    found = override.find("vanilla", FULL)
    override.stage(found, tmp_path / "staged")
    source = ASTSource(attn_fwd, FULL.signature(), FULL.constexprs(), {})
    with triton.knobs.compilation.scope(), triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path / "cache")
        triton.knobs.cache.override_dir = str(tmp_path / "staged")
        triton.knobs.compilation.override = True
        kernel = triton.compile(source, target=SM_90A.target, options={"num_warps": 4})
        with pytest.raises(UsageError, match="TRITON_KERNEL_OVERRIDE is set"):
            found.compile()
    assert canonical_ttgir(kernel.asm["ttgir"]) == found.text


def test_a_refusal_to_generate_removes_nothing(root):
    before = {path: path.read_text() for path in root.rglob("*") if path.is_file()}
    plain = override.find("vanilla", FULL, root)
    for generate in (lambda: instrumented.generate(plain, root), lambda: override.generate(VARIANTS["vanilla"], root)):
        with triton.knobs.compilation.scope():
            triton.knobs.compilation.override = True
            with pytest.raises(UsageError, match="TRITON_KERNEL_OVERRIDE is set"):
                generate()
    assert {path: path.read_text() for path in root.rglob("*") if path.is_file()} == before


def test_a_source_that_this_triton_does_not_compile_is_one_sentence_and_removes_nothing(root, tmp_path, monkeypatch):
    @builtin
    def removed(*_, _semantic=None):
        raise RuntimeError("it has been removed\ncall another")  # as from 3.9 on

    monkeypatch.setattr(tma, "async_copy_shared_to_global", removed)
    before = {path: path.read_text() for path in root.rglob("*") if path.is_file()}
    with own_cache(tmp_path / "cache"), pytest.raises(UsageError) as raised:
        override.generate(VARIANTS["vanilla"], root)
    assert str(raised.value) == (
        f"kperf/attention/kernels/vanilla.py does not compile with Triton {triton.__version__} "
        "(RuntimeError: it has been removed): install the locked wheels (`make setup`)"
    )
    assert {path: path.read_text() for path in root.rglob("*") if path.is_file()} == before


def test_what_was_compiled_without_the_override_is_not_taken_for_it(root, monkeypatch):
    """As Triton would, if it did not look where the override lies."""
    plain = compile_kernel(attn_fwd, FULL.signature(), FULL.constexprs())
    monkeypatch.setattr(override.compiler, "compile_kernel", lambda *_, **__: plain)
    found = override.find("vanilla", FULL)
    with pytest.raises(MeasurementError, match="was not put in place: another kernel was compiled"):
        found.compile()
    with pytest.raises(MeasurementError, match="was not put in place: another kernel was compiled"):
        override.generate(VARIANTS["vanilla"], root)


def test_the_launch_grid_is_the_manifests():
    for name, variant in VARIANTS.items():
        tiles = override.find(name, FULL).grid(n_rows=16 * 16 * 4096, n_sms=132)
        assert tiles == ((132,) if variant.grid == "persistent" else (8192,))
        assert override.find(name, FULL).grid(n_rows=128, n_sms=132) == (1,)


def test_a_bound_call_is_compiled_and_proven_once(monkeypatch):
    found = override.find("improved_plus", FULL)
    launched, looked = [], []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *arguments: launched.append((grid, arguments))

    kernel = Kernel()
    monkeypatch.setattr(found, "compile", lambda: looked.append("compile") or kernel)
    monkeypatch.setattr(any_kernel, "prove_launched", looked.append)
    run = found.launcher(n_rows=128 * 400, n_sms=132)
    assert looked == []
    for first in ("a", "b", "c"):
        run(first, 1.0)
    assert looked == ["compile", [(found, kernel)]]
    constants = tuple(FULL.constexprs().values())
    assert launched == [((132, 1, 1), (first, 1.0, *constants)) for first in ("a", "b", "c")]
    monkeypatch.undo()
    with triton.knobs.compilation.scope():  # which leaves no value behind that hides the environment's
        triton.knobs.compilation.override = True
        with pytest.raises(UsageError, match="TRITON_KERNEL_OVERRIDE"):
            found.launcher(128, 132)("a")


def test_kernels_are_proven_together_each_by_its_own():
    """The machine code of one is never taken for another's."""
    pairs = [(found, found.compile()) for found in (override.find(name, FULL) for name in ("vanilla", "improved"))]
    (first, one), (_, other) = pairs
    any_kernel.prove_launched([*pairs, *pairs])
    one.asm["cubin"], other.asm["cubin"] = other.asm["cubin"], one.asm["cubin"]
    with pytest.raises(MeasurementError, match=str(first.path)):
        any_kernel.prove_launched(pairs)
    one.asm["cubin"], other.asm["cubin"] = other.asm["cubin"], one.asm["cubin"]
    any_kernel.prove_launched(pairs)
