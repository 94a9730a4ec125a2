"""`kperf.paper.proof_session` on a GPU that is not there, on which a launch fills its third tensor with ones."""

import tempfile
from pathlib import Path

import torch

from kperf.paper import proof_session
from tests.trace.capture import fake_gpu


class Gpu(fake_gpu.FakeGpu):
    def free_bytes(self):
        return 1 << 40


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        fake_gpu.install(Path(folder))
        torch.set_default_device = lambda _: None  # tensors are the host's
        fake_gpu.WRITES.append(lambda _, arguments: arguments[2].fill_(1))
        proof_session.main(Gpu())
