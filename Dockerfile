# erniecore on a CPU: every plugin, the compiled kernels and Paddle, run by a user without rights. docs/how-to/containers.md says how
# to use it, and what to change for another device.
FROM python:3.11-slim AS wheels
# Debian keeps one version of a package in a release.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
# --no-build-isolation: one environment builds all distributions
RUN pip install --no-cache-dir 'flit_core>=3.11,<5' 'setuptools>=77,<81' \
    && pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels \
        . ./third_party_kernels ./plugins/*/*/

FROM python:3.11-slim
# OpenMP, which Paddle and the kernels load
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /constraints.txt
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
    pip install --no-cache-dir --find-links /wheels --constraint /constraints.txt 'erniecore[default,cpu]'
RUN useradd --create-home --uid 1000 ernie
USER 1000
WORKDIR /work
ENTRYPOINT ["ernie"]
CMD ["--help"]
