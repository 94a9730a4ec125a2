"""How figures are written."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex

from kperf.plots.style import BLUE, LINES, TYPE, YELLOW, LineEnd, content, name_ends, readable, save


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


def test_a_thin_line_in_a_lines_colour_leads_from_its_end_to_its_name(figure):
    (axis,) = figure.axes
    axis.set(xlim=(0, 4), ylim=(0, 10))
    name_ends(axis, [LineEnd("a", 2, 5.0, YELLOW), LineEnd("b", 3, 5.1, BLUE)], row=0.25)
    low, high = axis.texts
    assert [(text.get_text(), text.xy) for text in (low, high)] == [("a", (2, 5.0)), ("b", (3, 5.1))]
    assert [text.get_position() for text in (low, high)] == [(1.06, pytest.approx(y)) for y in (0.5, 0.75)]
    assert to_hex(low.arrow_patch.get_edgecolor()) == readable(YELLOW, LINES) != low.get_color() == readable(YELLOW)
    figure.canvas.draw()
    begin, end = low.arrow_patch.get_path().vertices[[0, -1]]
    to_pixels = axis.transData.transform
    assert np.hypot(*(end - to_pixels((2, 5.0)))) < 5 < np.hypot(*(begin - end))


@pytest.mark.parametrize(
    ("colour", "contrast", "stays"),
    [("#767676", TYPE, True), ("#777777", TYPE, False), ("#949494", LINES, True), ("#959595", LINES, False)],
)
def test_a_colour_is_darkened_only_where_its_contrast_on_white_is_too_small(colour, contrast, stays):
    """Greys on both sides of 4.5 and 3, which type and lines need by WCAG 2."""
    found = readable(colour, contrast)
    assert (found == colour) == stays
    assert found <= colour
