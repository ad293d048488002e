# The opferry server: `cpu` has the CPU reference, no device and no driver inside, and nothing that is
# bound to one processor architecture; `npu` has CANN for the backends of Ascend devices.
#
#   docker build --target cpu --tag opferry-server:0.1.0 .
#   docker build --target npu --tag opferry-server:0.1.0-npu .
#   docker run --rm --read-only --publish 127.0.0.1:50051:50051 opferry-server:0.1.0
#
# Arguments after the image's name replace CMD, and with it the address. So give other options as
# variables, or as a file (deploy/opferry-server.toml shows them all):
#
#   docker run --env OPFERRY_WORKERS=4 ...
#   docker run --volume "$PWD/server.toml:/opferry.toml:ro" --env OPFERRY_CONFIG=/opferry.toml ...
#
# Running requests get 20 s to end (grace_s), docker only gives 10: docker stop --timeout 30.
# With other servers, TLS and tokens: deploy/compose and deploy/k8s.

# Another image of CANN for the devices that you have: --build-arg CANN_IMAGE=...
ARG CANN_IMAGE=quay.io/ascend/cann:9.0.0-950-ubuntu22.04-py3.11

FROM python:3.13-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY client client
COPY server server
RUN python -m pip wheel --no-deps --wheel-dir dist .
# No pip inside: nothing is installed into a running container. Bytecode is compiled here, since
# the server cannot write any.
RUN python -m venv --without-pip /opt/opferry \
    && python -m pip --python /opt/opferry/bin/python install "$(echo dist/*.whl)[server]"

# The image of CANN brings its own Python, for which the wheels are another choice.
FROM ${CANN_IMAGE} AS npu-build
USER root
COPY --from=build /source/dist /source/dist
RUN python3 -m venv /opt/opferry \
    && /opt/opferry/bin/python -m pip install "$(echo /source/dist/*.whl)[server]" \
    && /opt/opferry/bin/python -m pip uninstall --yes pip

FROM ${CANN_IMAGE} AS npu
LABEL org.opencontainers.image.title="opferry-server" \
      org.opencontainers.image.description="The opferry server for Ascend devices" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH="/opt/opferry/bin:$PATH" \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NUMBA_CACHE_DIR=/tmp/opferry-numba \
    OPFERRY_BACKEND=aclnn
COPY --from=npu-build /opt/opferry /opt/opferry
# The group of the devices comes on top: --group-add, or supplementalGroups in a cluster.
USER 10001:10001
EXPOSE 50051
HEALTHCHECK --interval=30s --timeout=10s --start-period=300s --retries=3 \
    CMD ["opferry", "info", "--target", "127.0.0.1:50051", "--timeout", "5"]
# CANN is found by variables that its script sets; it has moved between releases.
ENTRYPOINT ["/bin/bash", "-c", "for file in /usr/local/Ascend/{ascend-toolkit,cann}/set_env.sh; do if [[ -r $file ]]; then source \"$file\"; break; fi; done; exec opferry-server \"$@\"", "opferry-server"]
# --insecure: see below.
CMD ["--address", "0.0.0.0:50051", "--insecure"]

# The last stage, which a build makes that names none.
FROM python:3.13-slim AS cpu
LABEL org.opencontainers.image.title="opferry-server" \
      org.opencontainers.image.description="The opferry server with the CPU reference" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/python:3.13-slim"
ENV PATH="/opt/opferry/bin:$PATH" \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NUMBA_CACHE_DIR=/tmp/opferry-numba
COPY --from=build /opt/opferry /opt/opferry
# A number, so that a cluster can see that it is not root; this user owns no file.
USER 10001:10001
EXPOSE 50051
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 \
    CMD ["opferry", "info", "--target", "127.0.0.1:50051", "--timeout", "5"]
ENTRYPOINT ["opferry-server"]
# --insecure: so there are NO CREDENTIALS and there is NO ENCRYPTION. Whoever reaches the port can
# run operators, read errors and fill the queue. Inside a container the server must listen on all
# addresses; publish the port to 127.0.0.1 (as above), or give a file with [tls] and [auth] (as in
# deploy/compose) and other arguments.
CMD ["--address", "0.0.0.0:50051", "--insecure"]
