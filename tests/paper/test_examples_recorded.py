"""What is known of an example by construction is what its recorded verdict says."""

import pytest

from kperf.paper import examples
from kperf.record.store import RECORDED
from kperf.report.sentences import verdict as sentences
from kperf.trace.analyze.models import Timeline
from kperf.trace.analyze.recorded import read_timeline

FOLDER = RECORDED / "h200" / "examples"


def recorded(name: str) -> Timeline:
    path = FOLDER / f"{name}.timeline.json"
    if not path.exists():
        pytest.skip(f"{name} is not recorded: `make examples` on a Hopper GPU records it")
    return read_timeline(path)


def verdict(name: str) -> str:
    return " ".join(sentences(recorded(name)))


def bytes_of(name: str) -> dict[str, tuple[int, int]]:
    return {part.argument: (part.loaded_bytes, part.stored_bytes) for part in recorded(name).memory.traffic}


@pytest.mark.parametrize("name", examples.names())
def test_every_example_is_recorded_whole(name: str):
    timeline = recorded(name)
    assert sentences(timeline)
    assert timeline.environment.gpu.startswith("NVIDIA H200")
    assert timeline.file.startswith("examples/") or name.startswith("mlp_")  # Inductor writes its kernels elsewhere
    assert all((FOLDER / f"{name}{suffix}").stat().st_size for suffix in examples.RECORDS)


@pytest.mark.parametrize("name", examples.names())
def test_an_example_is_seen_in_the_view_that_fits_it(name: str):
    imbalanced = {"moe", "attention_causal"}
    memory = {"vector_add", "softmax", "layer_norm", "flash_decoding_combine", "mlp_norm", "mlp_gate"}
    expected = "imbalance" if name in imbalanced else "memory" if name in memory else "pipeline"
    assert recorded(name).view == expected


def test_with_one_stage_loads_stand_on_the_path_and_with_three_they_do_not():
    one, three = recorded("gemm_1_stage"), recorded("gemm_3_stages")
    assert "loads are on the critical path" in verdict("gemm_1_stage")
    assert "loads arrive in time" in verdict("gemm_3_stages")
    assert one.load_wait.share > 2 * three.load_wait.share
    assert one.cycles_per_unit.median > 1.2 * three.cycles_per_unit.median


def test_loads_are_not_blamed_where_the_mmas_fill_the_iteration():
    timeline = recorded("gemm_tma")
    assert timeline.cycles_per_unit.median <= 1.01 * timeline.bound.cycles
    assert timeline.load_wait.share > 0.2  # its warps do wait, while the tensor cores work
    assert "loads lengthen an iteration by 0 cycles at most" in verdict("gemm_tma")


@pytest.mark.parametrize("name", ["gemm_1_stage", "gemm_2_stages", "gemm_3_stages", "gemm_tma", "gemm_133_tiles"])
def test_the_mmas_of_a_gemm_need_what_their_shapes_say(name: str):
    # 2 * 128 * 256 * 64 operations an iteration, 4096 a cycle.
    assert recorded(name).bound.cycles == 1024


def test_133_tiles_on_132_sms_end_in_a_wave_of_one():
    timeline = recorded("gemm_133_tiles")
    assert timeline.ctas == 133
    assert timeline.sms.sms == 132
    # In the last wave 131 of 132 SMs rest. It lasts at most as long as the first: its CTA has the memory to itself.
    assert 0.35 < timeline.sms.idle <= 131 / 264
    assert "133 CTAs are 1.01 waves of 132, and the last wave has 1" in verdict("gemm_133_tiles")
    assert "wave" not in verdict("gemm_tma")  # 2048 tiles: 15.5 waves


def test_the_layer_norm_reads_its_rows_twice():
    row_bytes = 8192 * 16384 * 2
    assert bytes_of("layer_norm") == {
        "x": (2 * row_bytes, 0), "weight": (row_bytes, 0), "bias": (row_bytes, 0), "out": (0, row_bytes),
    }  # fmt: skip


def test_the_vector_addition_moves_three_vectors_at_the_memorys_rate():
    vector_bytes = 4 << 26
    assert bytes_of("vector_add") == {"x": (vector_bytes, 0), "y": (vector_bytes, 0), "out": (0, vector_bytes)}
    timeline = recorded("vector_add")
    assert 0.8 < timeline.memory.gb_per_s / timeline.bandwidth.copy_gb_per_s < 1.2
    assert timeline.memory.gb_per_s < timeline.bandwidth.peak_gb_per_s
    assert timeline.memory.waits[0].doing == "waiting for loads"


def test_one_expert_is_hot_and_a_quarter_has_no_token():
    found = recorded("moe").imbalance
    # 64 experts, 16 of them with no token, 16 CTAs each; the hot one has 2048 of 4096 tokens: 16 tiles of 128 rows.
    assert found.early_share == pytest.approx(0.25)
    assert found.early_time_share < 0.05
    assert found.iterations.most == 16 * 2048 // 64
    assert found.iterations.median == 2048 // 64
    assert found.slowest.program_id % 64 == 0  # the grid is 64 x 16
    assert found.slowest.us > 5 * found.cta_us.median
    assert recorded("moe").sms.idle > 0.2


def test_causal_ctas_differ_as_the_mask_says():
    found = recorded("attention_causal").imbalance
    # Tiles of 128 rows against tiles of 64 keys, without the two on the diagonal: 0 to 62 iterations.
    assert found.iterations.most == 2 * 31
    assert recorded("attention_forward").imbalance is None


def test_what_tracing_costs_and_why_where_it_is_much():
    ratios = {name: recorded(name).overhead.ratio for name in examples.names()}
    assert sum(ratios.values()) / len(ratios) < 1.085  # the paper's mean, of four kernels, is 1.082
    for name, ratio in ratios.items():
        assert ("tracing makes it" in verdict(name)) == (ratio >= 1.1)
