"""A page keeps what people wrote, between its marks stands what a program says; the folder that --out names."""

import pytest

from kperf.errors import UsageError
from kperf.record.files import make_output, start_of, write_atomically, write_between_marks


def test_what_stands_between_the_marks_is_replaced_and_nothing_else(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- goals -->\nold\n<!-- /goals -->\nbelow <!-- claims -->\nkept\n<!-- /claims -->\n")
    for said in ("| new |\n| table |", "newer"):
        write_between_marks(page, "goals", said)
        assert page.read_text() == (
            f"above\n<!-- goals -->\n{said}\n<!-- /goals -->\nbelow <!-- claims -->\nkept\n<!-- /claims -->\n"
        )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<!-- goals -->",
        "<!-- /goals --> <!-- goals -->",
        2 * "<!-- goals --> <!-- /goals -->",
        "<!-- goal --> <!-- /goal -->",
    ],
)
def test_a_page_without_one_pair_of_marks_is_left_alone(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(UsageError, match="has no pair of marks <!-- goals --> and <!-- /goals -->"):
        write_between_marks(page, "goals", "new")
    assert page.read_text() == text


def test_a_page_that_cannot_be_read_is_one_sentence(tmp_path):
    with pytest.raises(UsageError, match=r"page\.md cannot be read: No such file"):
        write_between_marks(tmp_path / "page.md", "goals", "new")


def test_the_folder_for_out_is_made_with_those_around_it_and_may_be_there_already(tmp_path):
    for _ in range(2):
        make_output(tmp_path / "some" / "where")
        assert (tmp_path / "some" / "where").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="choose another folder with --out"):
        make_output(tmp_path / "file")


def test_a_file_that_cannot_be_written_is_one_sentence_and_leaves_nothing(tmp_path):
    taken = tmp_path / "folder.png"
    (taken / "inside").mkdir(parents=True)  # what is written is renamed to it, which a folder does not suffer
    with pytest.raises(UsageError, match=r"folder\.png cannot be written \(Is a directory\): name a place"):
        write_atomically(taken, "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


@pytest.mark.parametrize("letter", ["k", "é", "漢", "𠀀"])
def test_a_files_name_may_have_all_of_its_255_bytes(tmp_path, letter):
    """And what is made of a longer name keeps as many whole letters as leave room."""
    path = tmp_path / (letter * (255 // len(letter.encode())))
    write_atomically(path, "text")
    assert path.read_text() == "text"
    start = start_of(letter * 300)
    assert len(start.encode()) == 120
    assert set(start) == {letter}
    assert start_of("x" + letter * 300) == "x" + letter * (119 // len(letter.encode()))
    assert start_of(letter * 30) == letter * 30


def test_a_link_that_leads_to_itself_is_one_sentence_and_stays(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(link)
    with pytest.raises(UsageError, match=r"link cannot be written \(Too many levels of symbolic links\)"):
        write_atomically(link, "text")
    assert link.is_symlink()
