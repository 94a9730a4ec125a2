"""How figures are written."""

import matplotlib.pyplot as plt
import pytest

from kperf.plots.style import content, save


@pytest.fixture
def figure():
    made, axis = plt.subplots(figsize=(1, 1))
    axis.bar([1, 2], [1, 2], hatch="//", label="what")
    axis.set_title("what")
    yield made
    plt.close(made)


def test_a_file_has_the_same_bytes_whenever_it_is_drawn(figure, monkeypatch):
    for suffix, begin in (("pdf", b"%PDF"), ("png", b"\x89PNG")):
        drawn = []
        for seconds in ("0", "1000000000"):
            monkeypatch.setenv("SOURCE_DATE_EPOCH", seconds)  # matplotlib's clock, where it is set
            drawn.append(content(figure, suffix, dpi=50))
        assert drawn[0] == drawn[1]
        assert drawn[0].startswith(begin)
        assert b"Software" not in drawn[0]


def test_both_files_are_written_and_the_figure_is_closed(figure, tmp_path):
    written = save(figure, tmp_path / "some")
    assert [path.name for path in written] == ["some.pdf", "some.png"]
    assert [path.read_bytes()[:4] for path in written] == [b"%PDF", b"\x89PNG"]
    assert not plt.fignum_exists(figure.number)
