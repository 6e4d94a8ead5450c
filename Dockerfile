# Cohort in a container. Targets: cpu (the default) and cuda.
#
#   docker build --target cpu --build-arg TORCH_INDEX_URL=... -t cohort-server:cpu .
#   docker run --rm -p 127.0.0.1:8000:8000 --read-only --tmpfs /tmp --stop-timeout 45 cohort-server:cpu
#
# `make test-external ONLY=image` builds it with buildah. It keeps to what buildah 1.28, podman 4 and Docker 20 read.

# Debian 12. Another one needs a Python that the pinned torch has a wheel for; a digest can be given to pin it.
ARG BASE_IMAGE=debian:bookworm-slim

# --- what building and running have in common -------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS python
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3 \
 && rm -rf /var/lib/apt/lists/*

FROM python AS builder
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3-venv \
 && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src

# --- the project as a wheel with compiled CPU kernels: compiler and build tools stay here -----------------------------
FROM builder AS wheel
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*
COPY constraints.txt ./
RUN python3 -m venv /opt/build && /opt/build/bin/pip install -c constraints.txt hatchling
COPY pyproject.toml hatch_build.py README.md LICENSE NOTICE ./
COPY configs configs
COPY cohort_server cohort_server
COPY clients clients
COPY server server
COPY engine engine
COPY executors executors
RUN COHORT_WHEEL_KERNELS=required /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

# --- the environment: torch first and pinned, then the other dependencies, and the project last, which changes most ---
FROM builder AS dependencies
ARG TORCH_VERSION=2.13.0
# Unset: pip's own index, whose wheel for x86-64 carries CUDA. For target cpu give an index of CPU builds.
ARG TORCH_INDEX_URL=
# Torch's wheels carry its test programs, 130 MB.
RUN python3 -m venv /opt/cohort \
 && /opt/cohort/bin/pip install ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "torch==$TORCH_VERSION" \
 && find /opt/cohort/lib \( -path '*/torch/test/*' -o -path '*/torch/bin/*' \) -type f -perm /111 \
      ! -name torch_shm_manager -delete
COPY pyproject.toml constraints.txt ./
RUN python3 -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' \
      > requirements.txt \
 && /opt/cohort/bin/pip install -c constraints.txt -r requirements.txt

FROM dependencies AS environment
COPY --from=wheel /wheels /wheels
RUN /opt/cohort/bin/pip install --no-deps --no-index /wheels/*.whl \
 && /opt/cohort/bin/pip check
# The model that is served where none is named, 98 MB: a container without a network serves it.
RUN /opt/cohort/bin/cohort fetch-default --in-environment

FROM environment AS cpu-environment
RUN /opt/cohort/bin/python -c 'import sys, torch; sys.exit(torch.version.cuda and "The cpu image must not carry CUDA, and \
this torch does. Build with --build-arg TORCH_INDEX_URL=<index of CPU-only torch builds>, or with --target cuda.")'

# --- what runs --------------------------------------------------------------------------------------------------------
FROM python AS runtime
LABEL org.opencontainers.image.title="Cohort server" \
      org.opencontainers.image.description="Continuous-batching inference server with an OpenAI-compatible API" \
      org.opencontainers.image.licenses="Apache-2.0"
# A fixed uid: volumes and Kubernetes' runAsNonRoot need a number. Everything else belongs to root and is only read.
RUN groupadd --gid 10001 cohort \
 && useradd --uid 10001 --gid 10001 --home-dir /var/lib/cohort --create-home --shell /usr/sbin/nologin cohort
# The volume is all that is written to, beside /tmp: models and caches.
ENV PATH=/opt/cohort/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/var/lib/cohort \
    COHORT_HOST=0.0.0.0 \
    HF_HOME=/var/lib/cohort/huggingface \
    XDG_CACHE_HOME=/var/lib/cohort/cache \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /var/lib/cohort
VOLUME ["/var/lib/cohort"]
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
# The interval is also how long a start that took three seconds goes unnoticed; the check itself takes 40 ms of a core. From the
# first success on, six misses (30 s) mean unhealthy. Before it no miss counts for half an hour: fetching 140 GB at 100 MB/s and
# loading them take that long, and a server that cannot load its model ends by itself.
HEALTHCHECK --interval=5s --timeout=5s --start-period=30m --retries=6 \
  CMD ["python", "-I", "-m", "cohort_server.run", "server.commands.healthcheck"]
ENTRYPOINT ["cohort"]
CMD ["serve"]

FROM runtime AS cuda
# Triton builds what launches its kernels at the first use of each, and takes a C compiler and Python's headers for it.
USER root
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev python3-dev \
 && rm -rf /var/lib/apt/lists/*
USER 10001:10001
# What the NVIDIA container runtime looks for: the driver comes from the host, CUDA's libraries with torch's wheel.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=environment /opt/cohort /opt/cohort

FROM runtime AS cpu
COPY --from=cpu-environment /opt/cohort /opt/cohort
