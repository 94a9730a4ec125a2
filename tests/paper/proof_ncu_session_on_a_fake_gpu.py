"""`kperf.paper.proof_ncu_session` on a GPU that is not there; it tells `fake_ncu` which launches it marks."""

import contextlib
import os
import tempfile
from pathlib import Path

from kperf.paper import proof_ncu_session
from tests.trace.capture import fake_gpu


class Profiler(proof_ncu_session.Profiler):
    def settle(self):
        pass

    @contextlib.contextmanager
    def on(self, name):
        before = len(fake_gpu.LAUNCHES)
        yield
        (launch,) = fake_gpu.LAUNCHES[before:]
        if launch.name == "dies":
            os._exit(9)
        if launch.name == "breaks":
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore of it")
        with Path(os.environ["KPERF_FAKE_NCU"]).open("a") as marked:
            marked.write(f"{launch.name if 'unnamed' in os.environ['KPERF_FAKE_NCU'] else name}\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        fake_gpu.install(Path(folder))
        proof_ncu_session.main(Profiler())
