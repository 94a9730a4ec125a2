# The paper's own stack (KPerfIR, OSDI'25), as far as public facts pin it, to put its numbers beside ours:
#
#   docker build -f docker/osdi25.dockerfile -t kperf-osdi25 docker
#   docker run --rm --gpus all kperf-osdi25 bash bench_fa.sh vanilla seq_len
#   docker run --rm --gpus all -w /workspace/kperfir_artifact kperf-osdi25 python benchmark_attn.py seq_len
#
# Executed: the linter, and the steps before the first clone. Not executed: the build, which compiles Triton and FA3 (about 15
# minutes by the original's README), and the runs, which need an H100.
#
# Pinned here: the base by digest, Triton, flash-attention and the artifact by commit. The original leaves Triton and the
# flash-attn release open; 2.7.4.post1 is the one of its spring. tritonbench is known by its branch alone: the commit that a
# build got stands in /workspace/versions.txt, together with all packages.
ARG BASE=pytorch/pytorch:2.5.1-cuda12.4-cudnn9-devel@sha256:14611869895df612b7b07227d5925f30ec3cd6673bad58ce3d84ed107950e014
# hadolint ignore=DL3006
FROM ${BASE}

SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends build-essential git patch \
    && rm -rf /var/lib/apt/lists/*

# cmake below 4, which this Triton's build files predate.
# hadolint ignore=DL3013
RUN pip install --no-cache-dir ninja "cmake<4" wheel pybind11 tabulate

WORKDIR /workspace/flash-attention
ARG FLASH_ATTENTION=f86e3dd
ARG MAX_JOBS=8
RUN git clone --filter=blob:none https://github.com/Dao-AILab/flash-attention.git . \
    && git checkout "${FLASH_ATTENTION}" \
    && git submodule update --init --recursive \
    && pip install --no-cache-dir --no-build-isolation flash-attn==2.7.4.post1
WORKDIR /workspace/flash-attention/hopper
RUN MAX_JOBS="${MAX_JOBS}" python setup.py install

WORKDIR /workspace/triton
ARG TRITON=2abd0fa1eb6d8190aea7522498b381716c2fc873
RUN git init . \
    && git fetch --depth 1 https://github.com/ChandlerGuan/triton.git "${TRITON}" \
    && git checkout FETCH_HEAD \
    && MAX_JOBS="${MAX_JOBS}" pip install --no-cache-dir -e python

WORKDIR /workspace/kperfir_artifact
ARG ARTIFACT=801e8249143711d30420da0d9b34971dfc273b1f
RUN git init . \
    && git fetch --depth 1 https://github.com/ChandlerGuan/kperfir_artifact.git "${ARTIFACT}" \
    && git checkout FETCH_HEAD

WORKDIR /workspace/tritonbench
RUN git clone --depth 1 --branch fa-ws-tunable https://github.com/manman-ren/tritonbench.git . \
    && patch -p1 < /workspace/kperfir_artifact/changes.patch \
    && cp /workspace/kperfir_artifact/bench_fa.sh . \
    && { git rev-parse HEAD; pip freeze; } > /workspace/versions.txt

CMD ["bash"]
