# AMD MI300X (gfx942): ROCm's PyTorch, the locked Triton, AITER as the vendor's side, and this repository:
#
#   docker build -f docker/rocm.dockerfile -t kperf-rocm .
#   docker run --rm --device /dev/kfd --device /dev/dri --group-add video --security-opt seccomp=unconfined \
#       -v "$PWD/results:/results" kperf-rocm make tune        # or: make attention
#
# Executed: the linter, and in CI, without this image and without a GPU, the compiling for gfx942 of all plain Triton kernels
# of this repository, by the Triton that is installed here. Not executed: the build of this image, and anything on an AMD GPU.
# The overrides and Gluon kernels are Hopper's (TMA, wgmma, warp groups): `make attention` leaves them out here and says so.
#
# `make tune` writes its configurations to /results/configs and its record to /results/mi300x/tune.jsonl.
#
# Pinned: the base by digest, AITER by the commit of its release v0.1.29, all else by requirements/lock.txt, whose torch and
# NVIDIA libraries stay out. Triton's wheel has AMD's back end too. AITER compiles a kernel at its first call.
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

WORKDIR /opt/kperf
COPY requirements/lock.txt requirements/lock.txt
RUN awk '/^[a-z]/ { keep = !/^(torch|fa3-fwd|cuda-|nvidia-[^m])/ } keep' requirements/lock.txt > requirements/rocm.txt \
    && pip install --no-cache-dir --no-deps --require-hashes -r requirements/rocm.txt

COPY . .

ENV KPERF_IN_CONTAINER=1 \
    KPERF_RESULTS=/results \
    KPERF_TRITON_CONFIGS=/results/configs \
    PYTHONPATH=/opt/kperf \
    PYTHONUNBUFFERED=1

CMD ["make", "tune"]
