{{/* Parts of pods. */}}

{{- define "eplb.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "eplb.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "eplb.podBasics" -}}
serviceAccountName: {{ include "eplb.serviceAccount" . | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "eplb.podSecurity" . | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Settings of the controller: what the chart must say itself, below what the values say. */}}
{{- define "eplb.settings" -}}
{{- $server := dict "host" "0.0.0.0" "port" (int .Values.controller.port) "metrics_host" "0.0.0.0" "metrics_port" (int .Values.controller.metricsPort) -}}
{{- $security := dict "insecure" (not (dig "security" "certificate" "" .Values.controller.settings)) -}}
{{- if include "eplb.tlsSecret" . -}}
{{- $security = dict "certificate" "/etc/eplb-tls/tls.crt" "key" "/etc/eplb-tls/tls.key" "client_ca" "/etc/eplb-tls/ca.crt" -}}
{{- end -}}
{{- $own := dict "server" $server "security" $security "store" (dict "url" "sqlite:///var/lib/eplb/eplb.db") -}}
{{- toYaml (mergeOverwrite $own (deepCopy .Values.controller.settings)) -}}
{{- end -}}

{{/* The secret that TLS is done with; empty where there is none. */}}
{{- define "eplb.tlsSecret" -}}
{{- if .Values.tls.existingSecret -}}
{{- .Values.tls.existingSecret -}}
{{- else if .Values.tls.certManager.issuer -}}
{{- include "eplb.fullname" . }}-tls
{{- end -}}
{{- end -}}

{{- define "eplb.tlsMount" -}}
{{- if include "eplb.tlsSecret" . -}}
- {name: tls, mountPath: /etc/eplb-tls, readOnly: true}
{{- end -}}
{{- end -}}

{{- define "eplb.tlsVolume" -}}
{{- with include "eplb.tlsSecret" . -}}
- name: tls
  secret:
    secretName: {{ . | quote }}
    defaultMode: 288
{{- end -}}
{{- end -}}

{{/* What whoever asks the controller from inside a pod of the chart must say for TLS, in one line. */}}
{{- define "eplb.tlsWords" -}}
{{- if include "eplb.tlsSecret" . -}}
, --ca, /etc/eplb-tls/ca.crt, --certificate, /etc/eplb-tls/tls.crt, --key, /etc/eplb-tls/tls.key, --server-name, {{ printf "%s.%s.svc" (include "eplb.fullname" .) .Release.Namespace | quote }}
{{- end -}}
{{- end -}}

{{/* The environment that Ray needs, in pods that KubeRay does not make. */}}
{{- define "eplb.rayEnv" -}}
- name: RAY_USAGE_STATS_ENABLED
  value: "0"
- name: RAY_AUTH_MODE
  value: {{ .Values.ray.auth.mode | quote }}
{{- if eq .Values.ray.auth.mode "token" }}
- name: RAY_AUTH_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ include "eplb.authSecret" . | quote }}
      key: auth_token
{{- end }}
{{- end -}}

{{/* KubeRay makes a secret of the cluster's name where none is given. */}}
{{- define "eplb.authSecret" -}}
{{- if .Values.ray.auth.existingSecret -}}
{{- .Values.ray.auth.existingSecret -}}
{{- else if eq .Values.mode "existingRay" -}}
{{- fail "ray.auth.existingSecret is needed with mode existingRay and ray.auth.mode token: the secret with key auth_token that the cluster uses (KubeRay names it after the RayCluster)" -}}
{{- else -}}
{{- include "eplb.fullname" . -}}
{{- end -}}
{{- end -}}

{{/*
Probes of the controller. Readiness: only the leader is sent callers. Liveness: whoever answers is
left alone, leader or standby, also while weights move. The first start waits for the store.
*/}}
{{- define "eplb.probe" -}}
{{- $top := index . 0 -}}
{{- $question := index . 1 -}}
{{- /* Kubernetes' own gRPC probe knows no TLS. */ -}}
{{- if and (semverCompare ">=1.27-0" $top.Capabilities.KubeVersion.Version) (not (include "eplb.tlsSecret" $top)) -}}
grpc:
  port: {{ $top.Values.controller.port }}
  {{- if eq $question "lives" }}
  service: eplb.alive
  {{- end }}
{{- else -}}
exec:
  command: [eplb-probe, {{ $question }}, --endpoint, "127.0.0.1:{{ $top.Values.controller.port }}"{{ include "eplb.tlsWords" $top }}]
{{- end }}
timeoutSeconds: 5
{{- end -}}

{{- define "eplb.readiness" -}}
readinessProbe:
  {{- include "eplb.probe" (list . "leads") | nindent 2 }}
  periodSeconds: 5
  failureThreshold: 2
{{- end -}}

{{- define "eplb.ports" -}}
- name: grpc
  containerPort: {{ .Values.controller.port }}
  protocol: TCP
- name: metrics
  containerPort: {{ .Values.controller.metricsPort }}
  protocol: TCP
{{- end -}}

{{- define "eplb.scratchVolumes" -}}
- name: tmp
  emptyDir: {}
{{- end -}}

{{- define "eplb.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end -}}
