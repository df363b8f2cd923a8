{{- define "cluster.name" -}}{{ default .Release.Name .Values.name }}{{- end }}

{{- define "cluster.labels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: ottla
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
