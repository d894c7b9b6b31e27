#!/usr/bin/env bash
# Installs on a fresh Debian machine what its role in the lab needs. The namespace lab has it from `make setup`.
# Usage: KAFKA=VERSION KAFKA_PYTHON=VERSION CONFLUENT_KAFKA=VERSION install.sh broker|gateway|client
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)

packages() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    apt-get install -q -y --no-install-recommends "$@"
}

# The jars that the tests use too, unless another version is asked for.
jars() {
    local description
    description=$(mktemp)
    sed -E "/org=\"org.apache.kafka\"/s/rev=\"[^\"]+\"/rev=\"$KAFKA\"/" "$root/scripts/jars/kafka.xml" >"$description"
    java -jar /usr/share/java/ivy.jar -ivy "$description" -confs default -types jar bundle \
        -retrieve '/opt/kafka/[artifact]-[revision].[ext]'
    rm "$description"
}

# BCC's Python module is Debian's, so the environment sees Debian's packages.
agent() {
    /usr/bin/python3 -m venv --system-site-packages /opt/kafka-probe
    PIP_CONSTRAINT=$root/constraints.txt /opt/kafka-probe/bin/pip install --quiet "$root"
    ln -sf /opt/kafka-probe/bin/kafka-probe /usr/local/bin/
}

clients() {
    /usr/bin/python3 -m venv /opt/client
    /opt/client/bin/pip install --quiet "kafka-python==$KAFKA_PYTHON" "confluent-kafka==$CONFLUENT_KAFKA"
}

case $1 in
    broker)
        packages default-jre-headless ivy kcat python3-bpfcc python3-venv
        jars
        agent
        ;;
    gateway)
        packages nftables
        ;;
    client)
        packages python3-bpfcc python3-venv
        agent
        clients
        ;;
    *)
        echo "install: no role '$1'" >&2
        exit 2
        ;;
esac
