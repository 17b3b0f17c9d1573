# The agent inside a serving engine's image: the engine's own Python gets the package, nothing of
# the engine is replaced.
#   docker build -f deploy/images/agent.Dockerfile --build-arg BASE=REGISTRY/vllm-ascend:TAG \
#       -t eplb-agent:0.1.0 .
# There is no default for BASE: which engine, CANN and NPU it is must be said.
ARG BASE

# hadolint ignore=DL3006
FROM ${BASE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="eplb-agent" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 0
WORKDIR /opt/eplb-src
COPY pyproject.toml README.md LICENSE ./
COPY eplb_service eplb_service
COPY worker_agent worker_agent
COPY moe_runtime moe_runtime
COPY proto/gen proto/gen
# What the engine brings stays as it is: pip may add packages and may change none that is there.
RUN python3 -m pip freeze --exclude-editable > /tmp/all.txt \
    && grep -v ' @ ' /tmp/all.txt > /tmp/brought.txt \
    && python3 -m pip install --no-cache-dir --constraint /tmp/brought.txt . \
    && python3 -c 'import worker_agent.settings.settings' \
    && rm -rf /tmp/all.txt /tmp/brought.txt /opt/eplb-src
ENV PYTHONUNBUFFERED=1
WORKDIR /tmp
# On Ascend hosts the group must be the one that owns /dev/davinci*, HwHiAiUser as a rule.
ARG RUN_AS=10001:10001
USER ${RUN_AS}
