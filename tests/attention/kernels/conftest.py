"""Triton's interpreter, which computes kernels on the CPU."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from unittest.mock import patch

import pytest


@pytest.fixture(scope="package")
def interpreted():
    """Calls a function in a process that interprets: Triton decides when it is imported."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with patch.dict(os.environ, TRITON_INTERPRET="1"):
            pool.submit(os.getpid).result()  # the process is there
        yield lambda function, *arguments: pool.submit(function, *arguments).result()
