import triton

from kperf.ir.compile import named_ttgir
from tests.ir.printed import FOLDER, KERNELS
from tests.trace.kernels import compiled

folder = FOLDER / triton.__version__
folder.mkdir(exist_ok=True)
for name in KERNELS:
    (folder / f"{name}.ttgir").write_text(named_ttgir(compiled(name).asm["ttgir"]))
