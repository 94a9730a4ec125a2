"""`kperf.paper.proof_session` on a GPU that is not there, on which a launch computes nothing."""

import tempfile
from pathlib import Path

from kperf.paper import proof_session
from tests.trace.capture import fake_gpu


class Gpu(fake_gpu.FakeGpu):
    def free_bytes(self):
        return 1 << 40


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        fake_gpu.install(Path(folder))
        proof_session.main(Gpu())
