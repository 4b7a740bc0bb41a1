# syntax=docker/dockerfile:1
# The image of Turnkeeper; docs/container.md says how to run it.

FROM python:3.11-slim-bookworm AS build
WORKDIR /src
# Every package is checked against its hash, and nothing is built from source but Turnkeeper.
COPY requirements.lock ./
RUN python -m pip download --no-cache-dir --no-deps --require-hashes --only-binary :all: \
      -r requirements.lock -d /packages
ENV PIP_NO_CACHE_DIR=1 PIP_NO_INDEX=1 PIP_FIND_LINKS=/packages
COPY . .
RUN python -m pip wheel --no-deps --wheel-dir /built . \
 && python -m venv /opt/turnkeeper \
 && set -- /built/turnkeeper-*.whl \
 && /opt/turnkeeper/bin/pip install "$1[web,mcp,openai,anthropic,notify,calendars,web-fetch,postgres]"

FROM python:3.11-slim-bookworm
ENV PATH=/opt/turnkeeper/bin:$PATH \
    TURNKEEPER_HOME=/var/lib/turnkeeper \
    PYTHONDONTWRITEBYTECODE=1
RUN useradd --uid 10001 --home-dir "$TURNKEEPER_HOME" --no-create-home --shell /usr/sbin/nologin turnkeeper \
 && install --directory --mode 0700 --owner turnkeeper --group turnkeeper "$TURNKEEPER_HOME"
COPY --from=build /opt/turnkeeper /opt/turnkeeper
USER 10001
WORKDIR /var/lib/turnkeeper
VOLUME /var/lib/turnkeeper
# The supervisor becomes process 1: it starts the daemons, reaps what they leave, and stops them when it is told to end.
CMD ["sh", "-c", "turnkeeper init --yes && exec turnkeeper up --foreground"]
HEALTHCHECK --interval=30s --timeout=15s --start-period=60s --retries=3 CMD ["turnkeeper", "status", "--quiet"]
