{{- define "stack-controller.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* The name of everything: that of the release, with the chart's where it does not say it already. */}}
{{- define "stack-controller.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- $name := include "stack-controller.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Cluster-wide names of a second release, in another namespace, must not collide. */}}
{{- define "stack-controller.clusterName" -}}
{{- if .Values.controller.watchAllNamespaces }}
{{- include "stack-controller.fullname" . }}
{{- else }}
{{- printf "%s-%s" .Release.Namespace (include "stack-controller.fullname" .) }}
{{- end }}
{{- end }}

{{- /* What cannot change: the same as in config/manager, so that Helm can take over what kubectl or Flux has installed. */}}
{{- define "stack-controller.selectorLabels" -}}
app: {{ include "stack-controller.fullname" . | quote }}
{{- end }}

{{- define "stack-controller.labels" -}}
app.kubernetes.io/name: {{ include "stack-controller.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: stack-controller
app.kubernetes.io/version: {{ .Chart.AppVersion | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "stack-controller.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "stack-controller.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* An image from {image, chart, digest}: a release has the digests of its images, and they are not those of any other tag. */}}
{{- define "stack-controller.image" -}}
{{- with .image.registry }}{{ . }}/{{ end }}{{ .image.repository }}
{{- if .image.digest }}@{{ .image.digest }}
{{- else if .image.tag }}:{{ .image.tag }}
{{- else }}:{{ .chart.AppVersion }}{{ with index (default dict .chart.Annotations) .digest }}@{{ . }}{{ end }}
{{- end }}
{{- end }}

{{- /* The name that the Pulumi Kubernetes Operator gave it, where one release of the namespace can have it. */}}
{{- define "stack-controller.metricsServiceName" -}}
{{- $name := include "stack-controller.fullname" . }}
{{- if eq $name "stack-controller" }}pulumi-kubernetes-operator-metrics{{ else }}{{ printf "%s-metrics" (trunc 55 $name | trimSuffix "-") }}{{ end }}
{{- end }}

{{- define "stack-controller.eventsAddress" -}}
{{- default (printf "http://notification-controller.%s.svc.%s./" .Release.Namespace .Values.controller.clusterDomain) .Values.notifications.address }}
{{- end }}

{{- /* The value of --storage-max-size: 40 % of the volume, because downloads are in it before they count, and at least the default of
--artifact-max-size. Empty if it is the default of the flag. */}}
{{- define "stack-controller.storageMaxSize" -}}
{{- with .Values.storage.sizeLimit | default "" | toString }}
{{- $mebibytes := dict "" 9.5367431640625e-7 "K" 9.5367431640625e-4 "Ki" 9.765625e-4 "M" 0.95367431640625 "Mi" 1.0 "G" 953.67431640625 "Gi" 1024.0
  "T" 953674.31640625 "Ti" 1048576.0 "P" 953674316.40625 "Pi" 1073741824.0 "E" 953674316406.25 "Ei" 1099511627776.0 }}
{{- $size := max 256 (mulf 0.4 (regexFind "^[0-9.]+" . | float64) (get $mebibytes (regexFind "[KMGTPE]i?$" .)) | floor | int64) }}
{{- if ne $size 4096 }}{{ $size }}Mi{{ end }}
{{- end }}
{{- end }}

{{- /* The value of --dependency-kinds. */}}
{{- define "stack-controller.dependencyKinds" -}}
{{- range $i, $kind := .Values.dependencyKinds }}{{ if $i }},{{ end }}{{ $kind.group }}/{{ $kind.kind }}{{ end }}
{{- end }}

{{- /* The rules of the controller: of the kinds of others that Stacks can depend on, only those that dependencyKinds lists. The own kinds need
no further rule. Without the value, as after an upgrade with --reuse-values, they are those of the flag's default. */}}
{{- define "stack-controller.rules" -}}
{{- $optional := list "kustomize.toolkit.fluxcd.io/kustomizations" "helm.toolkit.fluxcd.io/helmreleases" }}
{{- $listed := list }}
{{- range .Values.dependencyKinds }}
{{- $listed = append $listed (printf "%s/%s" .group .resource) }}
{{- end }}
{{- $rules := list }}
{{- range (.Files.Get "files/role.yaml" | fromYaml).rules }}
{{- $resource := printf "%s/%s" (first .apiGroups) (first .resources) }}
{{- if or (not (has $resource $optional)) (has $resource $listed) (kindIs "invalid" $.Values.dependencyKinds) }}
{{- $rules = append $rules . }}
{{- end }}
{{- end }}
{{- range .Values.dependencyKinds }}
{{- if not (or (has .group (list "pulumi.com" "auto.pulumi.com")) (has (printf "%s/%s" .group .resource) $optional)) }}
{{- $rules = append $rules (dict "apiGroups" (list .group) "resources" (list .resource) "verbs" (list "get" "list" "watch")) }}
{{- end }}
{{- end }}
{{- toYaml $rules }}
{{- end }}
