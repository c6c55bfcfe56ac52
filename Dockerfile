# Serves the bundled environments, echo and terminal:
#
#   docker build --tag ors-server .
#   docker run --publish 127.0.0.1:8080:8080 --volume ors-data:/data \
#       --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined \
#       ors-server
#
# Without the three options a container may make no namespaces: echo is served, and the terminal is listed as
# unavailable, for there is no episode without isolation. Uploaded rollouts are kept in /data, and so are the keys: the
# first start makes one and prints it, once (`docker logs`). `docker exec CONTAINER ors-server keys add NAME` makes more.
#
# Serves one of yours:
#
#   docker run --publish 127.0.0.1:8080:8080 --volume "$PWD/my_env:/my_env:ro" ors-server serve /my_env
#
# Builds where the internet is out of reach: any image with Python 3.11 or newer, its `venv` and `useradd` can be the
# base, with apt or with the programs of below, and pip is configured by a build secret (an index of your own, or
# `no-index` with `find-links`):
#
#   docker build --build-arg BASE_IMAGE=my-python --secret id=pip.conf,src=pip.conf .
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
# pip stays behind in an environment of its own.
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/ors-server
COPY . /src
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /opt/pip/bin/pip --python /opt/ors-server/bin/python install --no-cache-dir /src

FROM ${BASE_IMAGE}
# bubblewrap isolates; git, make, patch and sqlite3 are what some families of terminal tasks are about.
RUN which bwrap git make patch sqlite3 >/dev/null || { \
        apt-get update && apt-get install --yes --no-install-recommends bubblewrap git make patch sqlite3 \
        && rm -rf /var/lib/apt/lists/*; }
# A named volume mounted on /data takes its owner over.
RUN useradd --uid 1000 --create-home ors && install --directory --owner=ors --group=ors /data
COPY --from=build /opt/ors-server /opt/ors-server
ENV PATH=/opt/ors-server/bin:$PATH PYTHONUNBUFFERED=1 ORS_HOST=0.0.0.0 ORS_PORT=8080 ORS_DATA_DIR=/data ORS_MAKE_KEY=yes
USER 1000
WORKDIR /home/ors
EXPOSE 8080
# The empty ProxyHandler keeps a proxy that the container is given out of a request to itself.
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s CMD ["python", "-c", "\
import os; \
from urllib.request import ProxyHandler, build_opener; \
build_opener(ProxyHandler({})).open('http://127.0.0.1:' + os.environ['ORS_PORT'] + '/health', timeout=4)"]
ENTRYPOINT ["ors-server"]
CMD ["serve", "echo", "terminal"]
