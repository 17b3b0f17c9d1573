# The controller, its keeper, eplbctl and eplb-probe; Ray nodes of the chart run it too.
#   docker build -f deploy/images/controller.Dockerfile -t eplb-controller:0.1.0 .
# BASE must bring the Python minor version that the Ray cluster uses.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
# The kernels of the policies are C (docs/adr/0010); the compiler stays in this stage.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends build-essential
COPY requirements/dev.txt requirements/dev.txt
COPY pyproject.toml README.md LICENSE ./
COPY eplb_service eplb_service
COPY worker_agent worker_agent
COPY moe_runtime moe_runtime
COPY proto/gen proto/gen
# dev.txt only bounds versions here: what it names and the service does not need stays out.
RUN python -m venv /opt/eplb \
    && /opt/eplb/bin/pip install --no-cache-dir --constraint requirements/dev.txt '.[service]'

FROM ${BASE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="eplb-controller" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# KubeRay's own probes of a Ray node call wget.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends wget \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 eplb \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp eplb \
    && install --directory --owner=eplb --group=eplb /var/lib/eplb
COPY --from=build /opt/eplb /opt/eplb
ENV PATH=/opt/eplb/bin:$PATH \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    RAY_USAGE_STATS_ENABLED=0
# Everything but /tmp and /var/lib/eplb may be read-only.
VOLUME ["/tmp", "/var/lib/eplb"]
WORKDIR /tmp
USER 10001:10001
EXPOSE 50051 9464
CMD ["eplb-service", "run"]
