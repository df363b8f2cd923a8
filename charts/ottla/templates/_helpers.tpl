{{- define "ottla.name" -}}
{{- if contains "ottla" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-ottla{{ end }}
{{- end }}

{{- define "ottla.labels" -}}
app.kubernetes.io/name: ottla-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: ottla
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "ottla.selector" -}}
app.kubernetes.io/name: ottla-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ottla.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "ottla.name" .) .Values.serviceAccount.name }}
{{- else }}{{ default "default" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{- define "ottla.webhookConfiguration" -}}
{{ include "ottla.name" . }}-{{ .Release.Namespace }}
{{- end }}

{{- define "ottla.tag" -}}
{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{- define "ottla.driverRole" -}}
{{ include "ottla.name" . }}-{{ .Release.Namespace }}-spark-driver
{{- end }}

{{- /* Its own kinds, everywhere: a namespace that is deleted loses its Roles before its resources, and
       finalizers that nobody may take off would hold it for ever. */ -}}
{{- define "ottla.own" -}}
- apiGroups: [ottla.dev]
  resources:
    - brokerclusters
    - brokerpools
    - topics
    - users
    - quotas
    - consumergroups
    - pipelines
    - connectclusters
    - connectors
  verbs: [get, list, watch, patch, update]
- apiGroups: [ottla.dev]
  resources:
    - brokerclusters/status
    - brokerpools/status
    - topics/status
    - users/status
    - quotas/status
    - consumergroups/status
    - pipelines/status
    - connectclusters/status
    - connectors/status
  verbs: [get, patch, update]
- apiGroups: [ottla.dev]
  resources:
    - brokerclusters/finalizers
    - brokerpools/finalizers
    - topics/finalizers
    - users/finalizers
    - quotas/finalizers
    - consumergroups/finalizers
    - pipelines/finalizers
    - connectclusters/finalizers
    - connectors/finalizers
  verbs: [update]
{{- end }}

{{- /* What else the operator may do, and no more. Secrets: certificates, and users' credentials. */ -}}
{{- define "ottla.rules" -}}
- apiGroups: [""]
  resources: [services, configmaps, serviceaccounts, secrets]
  verbs: [get, list, watch, create, patch, update, delete]
- apiGroups: [""]
  resources: [pods, persistentvolumeclaims]
  verbs: [get, list, watch, patch, delete]
# Only asked for, by a dry run, before a broker restarts.
- apiGroups: [""]
  resources: [pods]
  verbs: [create]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, update, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, update, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies, ingresses]
  verbs: [get, list, watch, create, patch, update, delete]
- apiGroups: [cert-manager.io]
  resources: [certificates]        # of listeners with an issuerRef; cert-manager need not be installed
  verbs: [get, list, watch, create, patch, update, delete]
- apiGroups: [gateway.networking.k8s.io]
  resources: [tlsroutes]           # of listeners of type tlsroute; the Gateway API need not be installed
  verbs: [get, list, watch, create, patch, update, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [rolebindings]        # of pipelines' drivers, to the only ClusterRole that may be bound
  verbs: [get, list, watch, create, patch, update, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [clusterroles]
  resourceNames: ["{{ include "ottla.driverRole" . }}"]
  verbs: [bind]
- apiGroups: ["", events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{- /* The Lease of which the working operator is the holder. */ -}}
{{- define "ottla.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: ["{{ include "ottla.name" . }}"]
  verbs: [get, patch]
{{- end }}

{{- define "ottla.uninstallHook" -}}
helm.sh/hook: post-delete, helm.sh/hook-delete-policy: "before-hook-creation,hook-succeeded,hook-failed"
{{- end }}
