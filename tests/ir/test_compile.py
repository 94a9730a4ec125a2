"""Several kernels compiled at once."""

import ast
import gc
import inspect
import time

import pytest

from kperf.ir.compile import several


@pytest.fixture
def collected_often():
    """And in the midst of it whoever waits for Python gets his turn, as where an object's end calls some."""

    def lets_others_in(*_):
        time.sleep(0)

    usual = gc.get_threshold()
    gc.callbacks.append(lets_others_in)
    gc.set_threshold(50)
    yield
    gc.set_threshold(*usual)
    gc.callbacks.remove(lets_others_in)


@pytest.mark.usefixtures("collected_often")
def test_threads_that_parse_at_once_do_not_count_each_others_depth(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    source = inspect.getsource(inspect)
    dumped = several(lambda _: ast.dump(ast.parse(source)), range(8))
    assert set(dumped) == {ast.dump(ast.parse(source))}
    assert gc.isenabled()
