"""Files of configurations: the class that holds a shape decides, and a file that is not right is one sentence."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from triton.backends.compiler import GPUTarget

from kperf.attention import configs
from kperf.attention.configs import Config, class_of, configured
from kperf.attention.workload import Workload
from kperf.errors import UsageError

TUNED = {"BLOCK_M": 64, "BLOCK_N": 32, "PRELOAD_V": True, "num_warps": 4, "num_ctas": 1, "num_stages": 1}
AMD = TUNED | {"waves_per_eu": 2}


@pytest.fixture
def on(monkeypatch, tmp_path):
    """The folder of the files; called with a target, what kernels are launched on."""
    monkeypatch.setenv(configs.FOLDER, str(tmp_path))
    monkeypatch.delenv(configs.AUTOTUNE, raising=False)

    def target(backend="cuda", arch=90, lanes=32):
        found = GPUTarget(backend, arch, lanes)
        monkeypatch.setattr(configs, "active_target", lambda: found)
        return tmp_path

    return target


def shape(seq_len=512, **more):
    return Workload(**{"batch": 4, "heads": 8, "seq_len": seq_len, "head_dim": 256, "causal": True} | more)


def config(block_m):
    return Config(**TUNED | {"BLOCK_M": block_m})


def test_the_reports_own_file_is_read_as_it_is(on):
    folder = on("hip", "gfx942", 64)
    (folder / "gfx942-MHA-DEFAULT.json").write_text(json.dumps({"fwd": {"default": AMD}}))
    assert configured(shape()) == Config(**AMD)
    assert configured(shape()).options() == AMD


@pytest.mark.parametrize(
    ("target", "name"),
    [(("cuda", 90, 32), "sm_90a"), (("cuda", 120, 32), "sm_120"), (("cuda", 75, 32), "sm_75"),
     (("hip", "gfx90a", 64), "gfx90a")],
)  # fmt: skip
def test_a_file_has_its_name_from_the_architecture(on, target, name):
    on(*target)
    assert configs.architecture() == name


def test_without_a_file_nothing_is_configured(on):
    on()
    assert configured(shape()) is None


@pytest.mark.parametrize(
    ("workload", "rows"),
    [
        (shape(128), 16),
        (shape(512), 16),
        (shape(640), 32),
        (shape(2048), 32),
        (shape(16384), 32),
        (shape(512, causal=False), 64),
        (shape(512, head_dim=128), 128),
    ],
    ids=str,
)
def test_the_smallest_class_that_holds_a_shape_speaks_for_it(on, workload, rows):
    on()
    configs.write("sm_90a", {class_of(shape(2048)): config(32), "d256_s512_full": config(64), "default": config(128)})
    configs.write("sm_90a", {class_of(shape(512)): config(16)})
    assert configured(workload) == config(rows)


def test_what_is_written_is_sorted_and_has_the_reports_form(on):
    folder = on()
    classes = ["d256_s4096_causal", "d64_s512_causal", "d256_s512_causal"]
    path = configs.write("sm_90a", dict.fromkeys(classes, Config(**TUNED)))
    assert path == folder / "sm_90a-MHA-DEFAULT.json"
    found = json.loads(path.read_text())
    assert list(found) == ["fwd"]
    assert list(found["fwd"]) == ["d64_s512_causal", "d256_s512_causal", "d256_s4096_causal"]
    assert found["fwd"]["d64_s512_causal"] == TUNED


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Invalid JSON"),
        ('{"fwd": {"default": ', "Invalid JSON"),
        ("[]", "should be an object"),
        ('{"bwd": {}}', "fwd: Field required"),
        (json.dumps({"fwd": {"default": TUNED | {"BLOCK_K": 1}}}), "fwd.default.BLOCK_K: Extra"),
        (json.dumps({"fwd": {"default": TUNED | {"BLOCK_M": 256}}}), "fwd.default.BLOCK_M"),
        (json.dumps({"fwd": {"default": TUNED | {"num_warps": "4"}}}), "fwd.default.num_warps"),
        (json.dumps({"fwd": {"d256": TUNED}}), "'d256' is no class of shapes"),
        (json.dumps({"fwd": {"default": AMD}}), "waves_per_eu, which sm_90a has not: it is of another architecture"),
    ],
)
def test_a_file_that_is_not_right_is_one_sentence(on, text, why):
    path = on() / "sm_90a-MHA-DEFAULT.json"
    path.write_text(text)
    for attempt in (lambda: configured(shape()), lambda: configs.write("sm_90a", {"default": config(64)})):
        with pytest.raises(UsageError) as refused:
            attempt()
        assert str(path) in str(refused.value)
        assert why in str(refused.value)
        assert "\n" not in str(refused.value)
    assert path.read_text() == text


def test_autotuning_is_asked_for_by_the_environment(on, monkeypatch):
    on()
    configs.write("sm_90a", {"default": config(64)})
    for switch, found in (("0", config(64)), ("", config(64)), ("1", None)):
        monkeypatch.setenv(configs.AUTOTUNE, switch)
        assert configured(shape()) == found
    monkeypatch.setenv(configs.AUTOTUNE, "yes")
    with pytest.raises(UsageError, match="KPERF_TRITON_AUTOTUNE is 0 or 1, not yes"):
        configured(shape())


VALUES = st.none() | st.integers() | st.text(max_size=5) | st.sampled_from([TUNED, AMD])
NAMES = st.sampled_from(["fwd", "default", "d64_s512_full", "d1_s"])


def lists_and_objects(inner):
    return st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3)


@given(st.recursive(VALUES, lists_and_objects, max_leaves=8))
def test_any_file_is_configurations_or_one_sentence(tmp_path_factory, found):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("configs")
        patch.setenv(configs.FOLDER, str(folder))
        (folder / "gfx942-MHA-DEFAULT.json").write_text(json.dumps(found))
        try:
            read = configs.read("gfx942")
        except UsageError as error:
            assert "\n" not in str(error)
        else:
            assert read == {name: Config(**one) for name, one in found["fwd"].items()}
