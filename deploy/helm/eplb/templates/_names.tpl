{{/* Names and labels. Every label value is quoted: a release may be called y. */}}

{{- define "eplb.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters: KubeRay adds to the name of a cluster, and labels end at 63. */}}
{{- define "eplb.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "eplb.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "eplb.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "eplb.labels" -}}
app.kubernetes.io/name: {{ include "eplb.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
app.kubernetes.io/part-of: "eplb"
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end -}}

{{/*
What selectors use: never changes between versions of the chart. Not the usual app.kubernetes.io
labels: KubeRay sets and selects by those itself. Call with (list . component).
*/}}
{{- define "eplb.selector" -}}
eplb.io/instance: {{ include "eplb.fullname" (index . 0) | quote }}
eplb.io/component: {{ index . 1 | quote }}
{{- end -}}

{{/* Labels of the pods that the controller may run in. */}}
{{- define "eplb.controllerPods" -}}
{{- if eq .Values.mode "existingRay" -}}
{{- if not .Values.ray.existing.podLabels -}}
{{- fail "ray.existing.podLabels is needed with mode existingRay: labels of the pods that offer the resource, for example ray.io/cluster and ray.io/group" -}}
{{- end -}}
{{- toYaml .Values.ray.existing.podLabels -}}
{{- else -}}
{{- include "eplb.selector" (list . "controller") -}}
{{- end -}}
{{- end -}}

{{- define "eplb.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{- define "eplb.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "eplb.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "eplb.claim" -}}
{{- default (printf "%s-store" (include "eplb.fullname" .)) .Values.store.existingClaim -}}
{{- end -}}

{{- define "eplb.endpoint" -}}
{{- printf "%s.%s.svc:%d" (include "eplb.fullname" .) .Release.Namespace (int .Values.controller.port) -}}
{{- end -}}

{{/* Where the keeper finds Ray: the client port of the head. */}}
{{- define "eplb.rayAddress" -}}
{{- if eq .Values.mode "existingRay" -}}
{{- required "ray.existing.address is needed with mode existingRay: the Ray Client address of the cluster, for example ray://NAME-head-svc:10001" .Values.ray.existing.address -}}
{{- else -}}
{{- printf "ray://%s-head-svc.%s.svc:10001" (include "eplb.fullname" .) .Release.Namespace -}}
{{- end -}}
{{- end -}}
