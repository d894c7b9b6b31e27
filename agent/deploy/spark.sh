#!/usr/bin/env bash
# Entry point of the pipeline's image. Spark passes `driver` or `executor` as the first argument, and sets variables for
# the rest. Other arguments are passed to kafka-probe-pipeline.
set -euo pipefail

case "${1:-}" in
    driver)
        exec "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
            --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "${@:2}"
        ;;
    executor)
        # Options of the JVM come as SPARK_JAVA_OPT_0, _1, ...
        options=()
        for ((number = 0; ; number++)); do
            option=SPARK_JAVA_OPT_$number
            [ -n "${!option:-}" ] || break
            options+=("${!option}")
        done
        exec java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
            -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_HOME/jars/*:${SPARK_CLASSPATH:-}" \
            org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
            --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
            --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
            --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
        ;;
    *) exec kafka-probe-pipeline "$@" ;;
esac
