"""Proposals: each is a candidate that was not tried, and what is known decides."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from kperf.tune.search import propose
from tests.tune.pretended import SPACE, milliseconds

TRIALS = 16


def searched(seed, *, cost=milliseconds, told=lambda cost: cost, trials=TRIALS, candidates=SPACE):
    """What is tried and what it costs, with a noise of 1 %; `told`: what the search gets to know of it."""
    noise = random.Random(seed)
    tried, known = {}, {}
    while len(tried) < trials:
        config = propose(candidates, known, seed=seed)
        assert config in candidates
        assert config not in tried
        tried[config] = cost(config) * noise.uniform(0.99, 1.01)
        known[config] = told(tried[config])
    return tried


def test_all_of_them_are_proposed_once_if_all_are_asked_for():
    assert {*searched(0, trials=len(SPACE))} == {*SPACE}


def test_the_same_knowledge_gives_the_same_proposal_so_that_a_killed_search_goes_on_as_it_would_have():
    whole = [*searched(5).items()]
    for done in (0, 3, 9):
        assert propose(SPACE, dict(whole[:done]), seed=5) == whole[done][0]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_knowledge_gives_an_untried_candidate(data):
    candidates = data.draw(st.lists(st.sampled_from(SPACE), min_size=1, max_size=12, unique=True))
    costs = st.none() | st.floats(1e-3, 1e3)
    tried = data.draw(st.dictionaries(st.sampled_from(SPACE), costs, max_size=10))
    left = {*candidates} - {*tried}
    if left:
        assert propose(candidates, tried, seed=data.draw(st.integers(0, 2**48))) in left


def test_what_is_to_be_first_is_first_if_it_is_a_candidate_and_untried():
    one, two, three = SPACE[:3]
    assert propose(SPACE, {}, [two, one], seed=0) == two
    assert propose(SPACE, {two: 1.0}, [two, one], seed=0) == one
    assert propose(SPACE[1:], {}, [one, three], seed=0) == three


def test_what_failed_is_not_proposed_again():
    tried = dict.fromkeys(SPACE[:40])
    assert propose(SPACE, tried, seed=0) in SPACE[40:]
