#!/usr/bin/env bash
# One Kafka client at work on the topic `orders`, in the foreground, until RECORDS have passed.
#
#   LIBRARY     kafka_python or librdkafka
#   ROLE        produce or consume
#   BOOTSTRAP   host:port of the brokers, separated by commas
#   PYTHON      an interpreter that has the library
#   RECORDS     a billion by default
#   RATE        records per second, 5 by default
#   REPORT      file for the client's own count, none by default
set -euo pipefail
: "${LIBRARY:?}" "${ROLE:?}" "${BOOTSTRAP:?}" "${PYTHON:?}"

cd "$(dirname "$0")/../.."
exec "$PYTHON" -m "tests.lab.${LIBRARY}_client" "$ROLE" --bootstrap "$BOOTSTRAP" --client-id "orders-${ROLE}r" \
    --topics orders --group orders --records "${RECORDS:-1000000000}" --rate "${RATE:-5}" \
    --report "${REPORT:-/dev/null}"
