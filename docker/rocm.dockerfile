# AMD MI300X (gfx942): ROCm's PyTorch and Triton, with AITER as the baseline that FA3 and cuDNN are on Hopper:
#
#   docker build -f docker/rocm.dockerfile -t kperf-rocm docker
#   docker run --rm -it --device /dev/kfd --device /dev/dri --group-add video --security-opt seccomp=unconfined kperf-rocm
#
# Executed: the linter and the Docker parser. Not executed: the build, and anything on an AMD GPU. kperf's own kernels are
# Hopper's (TMA, wgmma, warp groups) and are not in this image: it is the ground for a port, and gives AITER's side of one.
#
# Pinned: the base by digest, AITER by the commit of its release v0.1.29. AITER compiles a kernel at its first call.
ARG BASE=rocm/pytorch:rocm7.2_ubuntu24.04_py3.12_pytorch_release_2.9.1@sha256:a3b65813621095e3389269417e963725b59310184588c9d2490d44e6e83fa01c
# hadolint ignore=DL3006
FROM ${BASE}

SHELL ["/bin/bash", "-o", "pipefail", "-c"]

ENV GPU_ARCHS=gfx942 \
    AITER_USE_SYSTEM_TRITON=1

WORKDIR /workspace/aiter
ARG AITER=a0c4b69
RUN git clone --filter=blob:none https://github.com/ROCm/aiter.git . \
    && git checkout "${AITER}" \
    && git submodule update --init --recursive \
    && pip install --no-cache-dir --no-build-isolation -e .

# The shape of Fig. 12's centre, batch 16, seq_len 4096, 16 heads, head_dim 128: 4 * 16 * 16 * 4096^2 * 128 FLOPs.
RUN printf '%s\n' \
    'import torch, triton' \
    'from aiter import flash_attn_func' \
    'q, k, v = (torch.randn(16, 4096, 16, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))' \
    'ms = triton.testing.do_bench(lambda: flash_attn_func(q, k, v), return_mode="median")' \
    'print(f"AITER {4 * 16 * 16 * 4096**2 * 128 / ms / 1e9:.0f} TFLOPS")' \
    > /workspace/bench_aiter.py

CMD ["python", "/workspace/bench_aiter.py"]
