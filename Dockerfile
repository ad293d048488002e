# The opferry server with the CPU reference: no device and no driver inside, and nothing that is
# bound to one processor architecture.
#
#   docker build --tag opferry-server .
#   docker run --rm --read-only --publish 127.0.0.1:50051:50051 opferry-server
#
# Arguments after the image's name replace CMD, and with it the address. So give other options as
# variables, or as a file (deploy/opferry-server.toml shows them all):
#
#   docker run --env OPFERRY_WORKERS=4 ...
#   docker run --volume "$PWD/server.toml:/opferry.toml:ro" --env OPFERRY_CONFIG=/opferry.toml ...
#
# Running requests get 20 s to end (grace_s), docker only gives 10: docker stop --timeout 30.

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

FROM python:3.13-slim
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
# --insecure: there are NO CREDENTIALS and NO ENCRYPTION yet. Whoever reaches the port can run
# operators, read errors and fill the queue. Inside a container the server must listen on all
# addresses; publish the port to 127.0.0.1 (as above) or to a network that you trust, nothing else.
CMD ["--address", "0.0.0.0:50051", "--insecure"]
