{{- define "cohort.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "cohort.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "cohort.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "cohort.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "cohort.selectorLabels" -}}
app.kubernetes.io/name: {{ include "cohort.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "cohort.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "cohort.selectorLabels" . }}
{{- end }}

{{- define "cohort.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "cohort.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "cohort.autoscaled" -}}
{{- if and .Values.autoscaling.hpa.enabled .Values.autoscaling.keda.enabled }}
{{- fail "autoscaling.hpa and autoscaling.keda are both enabled: choose one" }}
{{- end }}
{{- if or .Values.autoscaling.hpa.enabled .Values.autoscaling.keda.enabled }}true{{ end }}
{{- end }}

{{- /* A pod of the Ray cluster: the same confinement as the Deployment's. Ray writes to /tmp and to its home, and shares memory. */}}
{{- define "cohort.rayPod" -}}
metadata:
  labels:
    {{- include "cohort.podSelector" .root | nindent 4 }}
    {{- with .root.Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .root.Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "cohort.serviceAccountName" .root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .root.Values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: {{ add .root.Values.drainTimeoutSeconds 20 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  containers:
    - name: {{ .name }}
      image: {{ printf "%s:%s" .root.Values.image.repository .root.Values.image.tag | quote }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
      ports:
        - name: serve
          containerPort: 8000
        {{- if .ports }}
        - name: gcs
          containerPort: 6379
        - name: dashboard
          containerPort: 8265
        {{- end }}
      env:
        - name: RAY_USAGE_STATS_ENABLED
          value: "0"
        - name: HOME
          value: /tmp
        {{- if .root.Values.metrics.existingSecret }}
        - name: COHORT_METRICS_KEY
          valueFrom:
            secretKeyRef:
              name: {{ .root.Values.metrics.existingSecret }}
              key: {{ .root.Values.metrics.secretKey }}
        {{- end }}
        {{- if .root.Values.hub.existingSecret }}
        - name: HF_TOKEN
          valueFrom:
            secretKeyRef:
              name: {{ .root.Values.hub.existingSecret }}
              key: token
        {{- end }}
      resources:
        {{- toYaml .resources | nindent 8 }}
      volumeMounts:
        - name: data
          mountPath: /var/lib/cohort
        - name: tmp
          mountPath: /tmp
        - name: shared-memory
          mountPath: /dev/shm
        {{- if .root.Values.auth.existingSecret }}
        - name: keys
          mountPath: /etc/cohort/keys
          readOnly: true
        {{- end }}
        {{- with .root.Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: data
      {{- if .root.Values.storage.existingClaim }}
      persistentVolumeClaim:
        claimName: {{ .root.Values.storage.existingClaim }}
      {{- else }}
      emptyDir:
        sizeLimit: {{ .root.Values.storage.size }}
      {{- end }}
    - name: tmp
      emptyDir:
        sizeLimit: 2Gi
    - name: shared-memory
      emptyDir:
        medium: Memory
        sizeLimit: 512Mi
    {{- if .root.Values.auth.existingSecret }}
    - name: keys
      secret:
        secretName: {{ .root.Values.auth.existingSecret }}
        defaultMode: 0440
    {{- end }}
    {{- with .root.Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .root.Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{- /* Labels of this release's pods. Those of Ray have one of their own: KubeRay finds pods by the usual ones, which it sets. */}}
{{- define "cohort.podSelector" -}}
{{- if .Values.ray.enabled -}}
cohort-server/instance: {{ .Release.Name }}
{{- else }}
{{- include "cohort.selectorLabels" . }}
{{- end }}
{{- end }}

{{- define "cohort.rayAlone" -}}
{{- if and .Values.ray.enabled .Values.metrics.serviceMonitor.enabled }}
{{- fail "ray.enabled: KubeRay makes the Service; have Prometheus scrape it by its name, without metrics.serviceMonitor" }}
{{- end }}
{{- if and .Values.ray.enabled (or .Values.autoscaling.hpa.enabled .Values.autoscaling.keda.enabled) }}
{{- fail "ray.enabled: the number of replicas is Ray's; autoscaling.hpa and autoscaling.keda scale the Deployment" }}
{{- end }}
{{- end }}
