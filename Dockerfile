# One image for everything that Ottla runs on Kubernetes: brokers, the operator, tools.
#
#   FLAVOUR=java    (the default) with Java and ZooKeeper's server, for ensembles that the operator runs
#   FLAVOUR=plain   without
#   FLAVOUR=connect with Java and Apache Kafka Connect: workers of ConnectClusters
#   FLAVOUR=spark   with Java, Spark and its connectors in their place: pipelines' drivers and executors
#
# BASE_IMAGE lets it build where no registry is: any Debian with Python 3.11 or later. The release workflow gives it with its
# digest, and REVISION and SOURCE, which are the commit and the address of the repository. The default names the release of
# Debian: `3.12-slim` moved on to Debian 13, which has no Java 17.
ARG BASE_IMAGE=python:3.12-slim-bookworm

FROM ${BASE_IMAGE} AS build
ARG FLAVOUR=java
WORKDIR /build
COPY requirements/build.txt requirements/runtime.txt requirements/sbom.txt requirements/spark.txt requirements/
RUN python3 -m venv --copies /opt/ottla \
 && case "$FLAVOUR" in spark) lock=spark ;; *) lock=runtime ;; esac \
 && /opt/ottla/bin/pip install --no-cache-dir --no-compile --quiet --require-hashes -r requirements/$lock.txt
COPY pyproject.toml README.md LICENSE ./
COPY client client
COPY broker broker
COPY operator operator
COPY pipeline pipeline
COPY console console
RUN python3 -m venv /tmp/tools && /tmp/tools/bin/pip install --no-cache-dir --quiet --require-hashes -r requirements/build.txt \
 && /tmp/tools/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /tmp/wheel . \
 && /opt/ottla/bin/pip install --no-cache-dir --quiet --no-deps /tmp/wheel/*.whl \
 && /opt/ottla/bin/python -m compileall -q -j 0 /opt/ottla/lib
# The Python packages of the image with their versions and licences, as CycloneDX; not those of Debian, nor Java's jars.
RUN python3 -m venv /tmp/sbom && /tmp/sbom/bin/pip install --no-cache-dir --quiet --require-hashes -r requirements/sbom.txt \
 && /tmp/sbom/bin/cyclonedx-py environment --output-reproducible --output-file /opt/ottla/sbom.cdx.json \
      /opt/ottla/bin/python

# Of Maven's: Kafka Connect with MirrorMaker's connectors, and the exporter of its metrics. The file connectors are not in
# the plugin path: who may create one of them may read the worker's files.
FROM build AS connect
ARG FLAVOUR=java
COPY connect/pom.xml connect/files.xml /build/
RUN mkdir -p /opt/connect/libs /opt/connect/plugins /opt/connect/file \
 && if [ "$FLAVOUR" = connect ]; then \
      mkdir -p /usr/share/man/man1 && apt-get update && apt-get install -y --no-install-recommends maven \
   && MAVEN_OPTS="$(/opt/ottla/bin/python pipeline/ottla_pipeline/trust_store.py /tmp/authorities.p12)" && export MAVEN_OPTS \
   && mvn -q -B -f /build/pom.xml dependency:copy-dependencies -DoutputDirectory=/opt/connect/libs \
   && mv /opt/connect/libs/jmx_prometheus_javaagent-*.jar /opt/connect/jmx_prometheus_javaagent.jar \
   && mvn -q -B -f /build/files.xml dependency:copy-dependencies -DoutputDirectory=/opt/connect/file; \
    fi

FROM ${BASE_IMAGE}
ARG FLAVOUR=java
# Of Debian's ZooKeeper, only what its server needs of the jars beside it.
RUN apt-get update && apt-get install -y --no-install-recommends tini \
 && if [ "$FLAVOUR" = java ]; then \
      mkdir -p /usr/share/man/man1 /opt/zookeeper \
   && apt-get install -y --no-install-recommends openjdk-17-jre-headless libzookeeper-java \
   && for jar in zookeeper zookeeper-jute slf4j-api slf4j-simple netty-* snappy-java commons-io metrics-core; do \
        for found in /usr/share/java/$jar.jar; do [ ! -e "$found" ] || ln -s "$found" /opt/zookeeper/; done; \
      done; \
    fi \
 && if [ "$FLAVOUR" = spark ] || [ "$FLAVOUR" = connect ]; then \
      mkdir -p /usr/share/man/man1 \
   && apt-get install -y --no-install-recommends openjdk-17-jre-headless; \
    fi \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/ottla ottla \
 && install -d -o 10001 -g 10001 /var/lib/ottla /run/ottla
COPY --from=build /opt/ottla /opt/ottla
COPY --from=connect /opt/connect /opt/connect
ENV PATH=/opt/ottla/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 OTTLA_ZOOKEEPER_JARS=/opt/zookeeper
# Of Maven's, by Ivy, as `make setup` gets them: among Spark's own jars nobody has to fetch or to ship them again.
RUN [ "$FLAVOUR" != spark ] || { \
      OTTLA_IVY_HOME=/tmp/ivy python3 -m ottla_pipeline.prefetch --into-spark && rm -rf /tmp/* ; }
ARG BASE_IMAGE
ARG VERSION=0.2.0.dev0
ARG REVISION=
ARG SOURCE=
LABEL org.opencontainers.image.title="Ottla" \
      org.opencontainers.image.description="Apache Kafka's job done by Python on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.source="$SOURCE" \
      org.opencontainers.image.base.name="$BASE_IMAGE"
USER 10001:10001
WORKDIR /var/lib/ottla
EXPOSE 9092
# A process 1 that hands signals on and reaps what is left behind.
ENTRYPOINT ["/usr/bin/tini", "--", "ottla"]
CMD ["--help"]
