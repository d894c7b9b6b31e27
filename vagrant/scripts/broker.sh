#!/usr/bin/env bash
# One Kafka node in KRaft combined mode, broker and controller, in the foreground. Data that is there stays.
#
#   NODE_ID   its number
#   ADDRESS   where clients (port 9092) and the other nodes (9093) reach it
#   VOTERS    all nodes of the cluster, as 1@10.57.2.11:9093,2@10.57.2.12:9093
#   DATA      directory of its data
#   JARS      directory of Kafka's jars
#   HEAP      of its JVM, 512m by default
set -euo pipefail
: "${NODE_ID:?}" "${ADDRESS:?}" "${VOTERS:?}" "${DATA:?}" "${JARS:?}"

IFS=, read -ra nodes <<<"$VOTERS"
replicas=$((${#nodes[@]} < 3 ? ${#nodes[@]} : 3))
in_sync=$((replicas > 1 ? replicas - 1 : 1))

mkdir -p "$DATA"
cat >"$DATA/server.properties" <<PROPERTIES
process.roles=broker,controller
node.id=$NODE_ID
listeners=PLAINTEXT://$ADDRESS:9092,CONTROLLER://$ADDRESS:9093
advertised.listeners=PLAINTEXT://$ADDRESS:9092
controller.listener.names=CONTROLLER
controller.quorum.voters=$VOTERS
log.dirs=$DATA/log
default.replication.factor=$replicas
offsets.topic.replication.factor=$replicas
transaction.state.log.replication.factor=$replicas
transaction.state.log.min.isr=$in_sync
share.coordinator.state.topic.replication.factor=$replicas
share.coordinator.state.topic.min.isr=$in_sync
PROPERTIES

quiet=(-Dorg.slf4j.simpleLogger.defaultLogLevel=warn -Dlog4j2.statusLoggerLevel=OFF)
kafka=(java "-Xmx${HEAP:-512m}" "${quiet[@]}" -cp "$JARS/*")
# All nodes of a cluster have the same id, 16 bytes in base64.
"${kafka[@]}" kafka.tools.StorageTool format --ignore-formatted \
    --cluster-id=kafka-probe-lab-00000A --config="$DATA/server.properties"
exec "${kafka[@]}" kafka.Kafka "$DATA/server.properties"
