"""Which GPUs a person asks for, and what is refused in a sentence."""

import importlib.util
import sys
from dataclasses import replace

import pytest

from kperf.bench import spread as spreading
from kperf.bench.spread import choose, spread
from kperf.errors import UsageError
from kperf.record.machine import Gpu

H200 = Gpu("NVIDIA H200", (9, 0), mig=False, processes=0, uuid="a")
FOUR = [replace(H200, uuid=letter) for letter in "abcd"]


@pytest.fixture
def machine(monkeypatch):
    """Says that it has four GPUs, and has no engine: to import it would fail."""
    monkeypatch.setattr(spreading.device, "why_static", lambda: None)
    monkeypatch.setattr(spreading.machine, "probe", lambda: type("Machine", (), {"gpus": tuple(FOUR)}))
    monkeypatch.setitem(sys.modules, "kperf.bench.many", None)
    monkeypatch.delattr("kperf.bench.many", raising=False)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("asked", ["all", "tcp://host:8786"])
def test_without_the_packages_of_the_engine_a_sentence_names_them(monkeypatch, asked):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "cryptography" else found(name))
    with (
        pytest.raises(
            UsageError, match=r"several GPUs need .* cryptography is not installed: .*`pip install '\.\[many\]'`"
        ),
        spread(asked),
    ):
        pass


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [
        ("all", [0, 1, 2, 3]),
        ("2", [0, 1]),
        ("4", [0, 1, 2, 3]),
        ("0,2", [0, 2]),
        ("3,1", [3, 1]),
        ("2,", [2]),
    ],
)
def test_what_is_asked_for_is_chosen(asked, numbers):
    chosen = choose(asked, FOUR)
    assert [one.number for one in chosen] == numbers
    assert [one.gpu for one in chosen] == [FOUR[number] for number in numbers]


@pytest.mark.parametrize(
    ("asked", "gpus", "sentence"),
    [
        ("0", FOUR, "'0' says nothing: it is all, how many"),
        ("", FOUR, "'' says nothing"),
        ("two", FOUR, "'two' says nothing"),
        ("0;2", FOUR, "'0;2' says nothing"),
        ("-1", FOUR, "'-1' says nothing"),
        ("0,,2", FOUR, "'0,,2' says nothing"),
        ("ALL", FOUR, "'ALL' says nothing"),
        ("5", FOUR, "--gpus 5 are more than the 4 that there are"),
        ("0,4", FOUR, "there is no GPU 4: this machine shows 0 to 3"),
        ("1,1", FOUR, "GPU 1 is named twice"),
        ("all", [H200, replace(H200, capability=(8, 0), name="NVIDIA A100")], "GPU 1 is NVIDIA A100, not Hopper"),
        ("all", [H200, replace(H200, name="NVIDIA H100")], "GPU 1 is NVIDIA H100 and GPU 0 NVIDIA H200: choose"),
        ("0,1", [H200, replace(H200, mig=True)], "GPU 1 has MIG on"),
    ],
)
def test_what_there_is_not_is_refused(asked, gpus, sentence):
    with pytest.raises(UsageError) as raised:
        choose(asked, gpus)
    assert sentence in str(raised.value)


@pytest.mark.parametrize("asked", [None, "1", "0,"])
def test_one_gpu_is_this_process_s_and_needs_no_engine(machine, asked):
    with spread(asked) as bench:
        assert bench is None


@pytest.mark.parametrize("asked", ["2", "all", "3,", "tcp://host:8786"])
def test_several_or_another_need_it(machine, asked):
    with pytest.raises(ImportError), spread(asked):
        pass


@pytest.mark.parametrize("asked", ["http://host:8786", "tcp://host", "tcp://host:port", "tcp://"])
def test_what_only_looks_like_an_address_is_refused(machine, asked):
    with pytest.raises(UsageError, match="is no address of a scheduler: tcp://host:8786 is one"), spread(asked):
        pass


def test_without_a_gpu_nonsense_is_refused_all_the_same(monkeypatch):
    monkeypatch.setattr(spreading.device, "why_static", lambda: "no GPU")
    with spread("all") as bench:
        assert bench is None
    for asked, sentence in (("some", "says nothing"), ("0,0", "GPU 0 is named twice"), ("2,3,03", "GPU 3 is named")):
        with pytest.raises(UsageError, match=sentence), spread(asked):
            pass
