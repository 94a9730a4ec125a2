# The pinned environment: stock wheels from requirements/lock.txt, nothing to compile.
#
#   docker build --build-arg COMMIT=$(git rev-parse HEAD) -t kperf .
#   docker run --rm --gpus all -v "$PWD/results:/results" --user "$(id -u):$(id -g)" kperf make fig12
#
# Build arguments: BASE (another base image), COMMIT (recorded with every result), TRITON (another Triton: a version, the
# address of a wheel, or git+https://...@commit to build a fork), WITH_FLASH_ATTN=1 (build the flash-attn package for fa2,
# MAX_JOBS files at a time).
#
# Only what the classic builder knows: the Docker SDK drives that one.

# 3.12.14-slim-bookworm by the digest of its manifest list: the same bytes for everyone. Where no registry can be reached,
# tests pass the tag of a stand-in made by docker/standin.sh.
ARG BASE=python:3.12.14-slim-bookworm@sha256:782412e85d0f0984994c290652577d4018aff08145c85b262bb63dc0c7522254
# hadolint ignore=DL3006
FROM ${BASE}

SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# gcc: Triton compiles a small launcher in C for each kernel signature. Versions follow the Debian release of the base: a
# pinned one vanishes from the archive with the next point release.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends gcc libc6-dev make \
    && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log \
    && useradd --no-log-init --no-create-home --home-dir /tmp --uid 1000 --user-group kperf \
    && install -d -o kperf -g kperf /results

COPY requirements/lock.txt /opt/kperf/requirements/lock.txt
# Compiled to bytecode here, because a read-only container cannot keep it.
RUN pip install --no-cache-dir --root-user-action=ignore --require-hashes -r /opt/kperf/requirements/lock.txt

# Another Triton in place of the pinned wheel. Building a fork wants git and a C++ compiler, which do not stay.
ARG TRITON=""
# TRITON is its own pin.
# hadolint ignore=DL3008,DL3013
RUN case "${TRITON}" in \
        "") ;; \
        git+*) apt-get update \
            && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends git g++ zlib1g-dev \
            && pip install --no-cache-dir --root-user-action=ignore --no-deps --force-reinstall "${TRITON}" \
            && apt-get purge -y --auto-remove git g++ zlib1g-dev \
            && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log /root/.triton ;; \
        *) pip install --no-cache-dir --root-user-action=ignore --no-deps --force-reinstall "${TRITON}" ;; \
    esac

ARG WITH_FLASH_ATTN=0
ARG MAX_JOBS=2
COPY docker/flash_attn.sh /opt/kperf/docker/flash_attn.sh
RUN if [ "${WITH_FLASH_ATTN}" = 1 ]; then bash /opt/kperf/docker/flash_attn.sh; fi

WORKDIR /opt/kperf
COPY . .
# The modes of a checkout are its owner's affair: here everyone reads and nobody but root writes.
RUN chmod -R a+rX,go-w . \
    && python -m compileall -q kperf plots \
    && printf '#!/bin/sh\nexec python -m kperf "$@"\n' > /usr/local/bin/kperf \
    && chmod 755 /usr/local/bin/kperf docker/entrypoint.sh

# HOME and the caches stand under /tmp: a tmpfs when the container is read-only (mounted exec: Triton loads what gcc made).
# USER is set because a user id without a name has none.
ENV KPERF_IN_CONTAINER=1 \
    KPERF_RESULTS=/results \
    PYTHONPATH=/opt/kperf \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    USER=kperf \
    TRITON_CACHE_DIR=/tmp/triton \
    MPLCONFIGDIR=/tmp/matplotlib \
    RUFF_CACHE_DIR=/tmp/ruff \
    MYPY_CACHE_DIR=/tmp/mypy \
    HYPOTHESIS_STORAGE_DIRECTORY=/tmp/hypothesis \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

ARG COMMIT=unknown
ENV KPERF_COMMIT=${COMMIT}
LABEL org.opencontainers.image.title="kperf" \
      org.opencontainers.image.description="See where a Triton kernel waits, and reproduce Fig. 11 and Fig. 12 of KPerfIR" \
      org.opencontainers.image.version="0.3.0" \
      org.opencontainers.image.revision="${COMMIT}" \
      org.opencontainers.image.licenses="MIT" \
      kperf.torch="2.11.0" \
      kperf.triton="${TRITON:-3.6.0}" \
      kperf.fa3-fwd="0.0.3"

USER 1000:1000
ENTRYPOINT ["/opt/kperf/docker/entrypoint.sh"]
CMD ["kperf", "doctor"]
