{{- define "kafka-probe.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "kafka-probe.fullname" -}}
{{- $name := include "kafka-probe.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "kafka-probe.serviceAccountName" -}}
{{- default (ternary (include "kafka-probe.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name }}
{{- end }}

{{- define "kafka-probe.selector" -}}
app.kubernetes.io/name: {{ include "kafka-probe.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kafka-probe.metadata" -}}
name: {{ include "kafka-probe.fullname" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "kafka-probe.labels" . | nindent 2 }}
{{- end }}

{{- define "kafka-probe.labels" -}}
{{ include "kafka-probe.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "kafka-probe.image" -}}
{{- with .Values.image }}
{{- .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ default $.Chart.AppVersion .tag }}{{ end }}
{{- end }}
{{- end }}

{{- /* Not empty if the agent accepts connections from outside its pod. */}}
{{- define "kafka-probe.exposed" -}}
{{- with .Values.listen }}
{{- if and .tlsSecret (not .tokenSecret.name) (not .clientCertificates) }}
{{- fail "listen.tlsSecret needs listen.tokenSecret.name or listen.clientCertificates: otherwise the agents listen on loopback only." }}
{{- end }}
{{- if and .clientCertificates (not .tlsSecret) }}
{{- fail "listen.clientCertificates needs listen.tlsSecret." }}
{{- end }}
{{- or .tokenSecret.name .tlsSecret }}
{{- end }}
{{- end }}

{{- /* Not empty if events wait on disk: events for standard output do not. */}}
{{- define "kafka-probe.spool" -}}
{{- and .Values.spool.enabled (ne (toString .Values.settings.sink) "stdout") | ternary "yes" "" }}
{{- end }}

{{- /* A probe: with TLS by the kubelet, else by a shell in the pod, because the kubelet cannot reach its loopback. */}}
{{- define "kafka-probe.ask" -}}
{{- if .tls -}}
httpGet:
  path: {{ .path }}
  port: http
  scheme: HTTPS
{{- else -}}
exec:
  command:
    - /bin/bash
    - -c
    - >-
      exec 3<>/dev/tcp/localhost/{{ .port }}
      && printf 'GET {{ .path }} HTTP/1.0\r\n\r\n' >&3
      && read -r _ status _ <&3
      && [ "$status" = 200 ]
{{- end }}
timeoutSeconds: 5
{{- end }}
