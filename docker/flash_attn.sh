#!/bin/bash
# Build the flash-attn package for Hopper inside the image (build argument WITH_FLASH_ATTN=1); kperf's fa2 then uses it.
# The CUDA compiler comes as wheels of the same CUDA release as torch's, and goes again when the build is done.
#
# Executed: up to and with the first compiled CUDA files. The whole build takes hours on a few cores: MAX_JOBS says how
# many files are compiled at once, each wants about 4 GB of memory.
set -euo pipefail

version=2.8.3
sha256=1e71dd64a9e0280e0447b8a0c2541bad4bf6ac65bdeaa2f90e51a9e57de0370d
release=$(python -c 'import importlib.metadata; print(importlib.metadata.version("cuda-toolkit"))')
compiler=(nvidia-cuda-nvcc nvidia-cuda-crt nvidia-cuda-cccl nvidia-nvvm)

apt-get update
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends g++
pip install --no-cache-dir --root-user-action=ignore "cuda-toolkit[nvcc,crt,cccl,nvvm]==$release" psutil

CUDA_HOME=$(python -c 'import nvidia; print(nvidia.__path__[0])')/cu13
export CUDA_HOME
export PATH="$CUDA_HOME/bin:$PATH" FLASH_ATTN_CUDA_ARCHS=90 FLASH_ATTENTION_FORCE_BUILD=TRUE MAX_JOBS="${MAX_JOBS:-2}"
# The linker looks for lib64/libcudart.so; the wheel has lib/libcudart.so.13.
ln -s lib "$CUDA_HOME/lib64"
ln -s libcudart.so.13 "$CUDA_HOME/lib/libcudart.so"

echo "flash-attn==$version --hash=sha256:$sha256" >/tmp/flash-attn.txt
pip install --no-cache-dir --root-user-action=ignore --no-build-isolation --no-deps --no-binary flash-attn \
    --require-hashes -v -r /tmp/flash-attn.txt

rm "$CUDA_HOME/lib64" "$CUDA_HOME/lib/libcudart.so" /tmp/flash-attn.txt
pip uninstall -y --root-user-action=ignore "${compiler[@]}" psutil
apt-get purge -y --auto-remove g++
rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log
