{{/* The name of what has a namespace. */}}
{{- define "sluice.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if .Values.nameOverride -}}
{{- if contains .Values.nameOverride .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- else -}}
operator
{{- end -}}
{{- end -}}

{{/* The name of what has none. */}}
{{- define "sluice.clusterName" -}}
{{- if or .Values.fullnameOverride .Values.nameOverride -}}
{{- include "sluice.fullname" . -}}
{{- else -}}
tailscale-operator
{{- end -}}
{{- end -}}

{{/* An image, of its values, the path of those in the values, what upstream's is called, and the chart's version. */}}
{{- define "sluice.image" -}}
{{- $repository := coalesce .image.repo .image.repository -}}
{{- range list .upstream (printf "ghcr.io/%s" .upstream) (printf "docker.io/%s" .upstream) -}}
{{- if eq . $repository -}}
{{- fail (printf "%s.repository is `%s`, which is the image of Tailscale's operator: leave it out, or name where you keep `%s`" $.path $repository $.ours) -}}
{{- end -}}
{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (.image.tag | default .version | toString) -}}
{{- end -}}
{{- end -}}

{{- define "sluice.operatorImage" -}}
{{- include "sluice.image" (dict "image" .Values.operatorConfig.image "path" "operatorConfig.image" "upstream" "tailscale/k8s-operator" "ours" "sluice-operator" "version" .Chart.AppVersion) -}}
{{- end -}}

{{- define "sluice.proxyImage" -}}
{{- include "sluice.image" (dict "image" .Values.proxyConfig.image "path" "proxyConfig.image" "upstream" "tailscale/tailscale" "ours" "sluice-proxy" "version" .Chart.AppVersion) -}}
{{- end -}}

{{/* What the chart's objects have in common. */}}
{{- define "sluice.labels" -}}
app.kubernetes.io/name: sluice-operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{/* Where the operator's credentials come from: `volume`, `identity`, `headscale` or `secret`. */}}
{{- define "sluice.credentials" -}}
{{- if .Values.oauthSecretVolume -}}
volume
{{- else if .Values.oauth.audience -}}
identity
{{- else if .Values.headscale.apiKeySecret.name -}}
headscale
{{- else -}}
secret
{{- end -}}
{{- end -}}

{{- define "sluice.impersonates" -}}
{{- if or (eq (toString .Values.apiServerProxyConfig.mode) "true") (eq (toString .Values.apiServerProxyConfig.allowImpersonation) "true") -}}
true
{{- end -}}
{{- end -}}
