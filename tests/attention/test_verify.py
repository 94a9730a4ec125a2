"""What is refused before a kernel gets a time: spills, too much shared memory, no wgmma, another kernel's boxes."""

import hashlib
import json
import re
import shutil
from types import SimpleNamespace

import pytest

from kperf.attention import overrides as override
from kperf.attention.variants import Specialization
from kperf.errors import MeasurementError, UsageError
from kperf.ir.compile import Resources

FULL = Specialization()
PTX = "wgmma.mma_async.sync"


def found(monkeypatch, ptx, used, num_warps=4, **promised):
    """An override that compiles to this, and whose manifest promises `promised`."""
    made = SimpleNamespace(asm={"ptx": ptx}, metadata=SimpleNamespace(num_warps=num_warps))
    monkeypatch.setattr(override.Override, "compile", lambda self: made)
    monkeypatch.setattr(override.compiler, "resources", lambda kernel: used)
    plain = override.find("vanilla", FULL)
    return override.Override(
        plain.path, plain.text, plain.entry.model_copy(update={"num_warps": 4} | promised), plain.manifest
    )


@pytest.mark.parametrize(
    ("ptx", "used", "said"),
    [
        (PTX, Resources(168, 0, 0, 232_448), None),
        (PTX, Resources(168, 0, 0, 232_449), "wants 232449 bytes of shared memory; an SM has 232448"),
        (PTX, Resources(168, 8, 0, 1024), "spills 8 bytes"),
        (PTX, Resources(168, 0, 8, 1024), "spills 8 bytes"),
        (PTX, Resources(168, 8, 16, 1024), "spills 24 bytes"),
        ("mma.sync", Resources(168, 0, 0, 1024), "without wgmma"),
    ],
    ids=["all that there is", "a byte too much", "stack", "local", "both", "no wgmma"],
)
def test_what_would_be_slow_or_cannot_run_is_refused(monkeypatch, ptx, used, said):
    item = found(monkeypatch, ptx, used, shared_bytes=used.shared_bytes)
    if said is None:
        assert override.verify(item).shared_bytes == used.shared_bytes
    else:
        with pytest.raises(MeasurementError, match=said):
            override.verify(item)


@pytest.mark.parametrize(("num_warps", "shared_bytes"), [(8, 1024), (4, 1032)])
def test_what_the_manifest_does_not_promise_is_refused(monkeypatch, num_warps, shared_bytes):
    used = Resources(168, 0, 0, shared_bytes)
    with pytest.raises(MeasurementError, match="and it compiles to"):
        override.verify(found(monkeypatch, PTX, used, num_warps, shared_bytes=1024))


@pytest.mark.parametrize("argument", ["q", "k", "v", "o"])
@pytest.mark.parametrize("box", ["32x128", "64x64"])
def test_a_box_of_any_argument_that_is_not_the_kernels_is_refused(tmp_path, argument, box):
    """`attn_fwd` makes the descriptors: the override would compile and read the wrong rows."""
    root = tmp_path / "ttgir"
    shutil.copytree(override.TTGIR_DIR, root)
    path = root / "vanilla" / FULL.file_name
    number = iter(range(100))
    text = re.sub(
        r"(%arg\d+: !tt\.tensordesc<tensor<)(\d+x\d+)",
        lambda found: found[1] + (box if next(number) == "qkvo".index(argument) else found[2]),
        path.read_text(),
    )
    path.write_text(text)
    manifest = json.loads((root / "vanilla/manifest.json").read_text())
    entry = next(entry for entry in manifest["overrides"] if entry["file"] == FULL.file_name)
    entry["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (root / "vanilla/manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match="would compile and read the wrong rows"):
        override.find("vanilla", FULL, root)


def test_a_persons_own_file_has_the_hash_of_its_own_text(tmp_path):
    like = override.find("vanilla", FULL)
    path = tmp_path / "mine.ttgir"
    path.write_text(like.text.replace("0.693147182", "5.000000e-01"))
    mine = override.from_file(path, like)
    assert mine.entry.sha256 == mine.sha256 == hashlib.sha256(mine.text.encode()).hexdigest() != like.sha256
    assert mine.entry.file == "mine.ttgir"
    assert mine.sha256 in str(mine.place())
