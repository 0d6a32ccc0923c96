package update

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
)

func TestVariablesOfFilesAreReadByTheAgent(t *testing.T) {
	const token = "/var/run/secrets/azure/tokens/azure-identity-token"
	for name, tt := range map[string]struct {
		files       []autov1alpha1.EnvFile
		env         []corev1.EnvVar
		withoutPods bool
		invalid     string
	}{
		"a token":                {files: []autov1alpha1.EnvFile{{Name: "ARM_OIDC_TOKEN", Path: token}}},
		"a file elsewhere":       {files: []autov1alpha1.EnvFile{{Name: "X", Path: "/share/agent"}}, invalid: "must begin with /var/run/secrets/"},
		"a way out":              {files: []autov1alpha1.EnvFile{{Name: "X", Path: "/var/run/secrets/../../../etc/passwd"}}, invalid: "have no . or .. in it"},
		"what the agent has":     {files: []autov1alpha1.EnvFile{{Name: "X", Path: "/var/run/secrets/stack-controller/tls.key"}}, invalid: "are those of the agent"},
		"a variable that is set": {files: []autov1alpha1.EnvFile{{Name: "X", Path: token}}, env: []corev1.EnvVar{{Name: "X", Value: "1"}}, invalid: `"X" is set twice`},
		"no pod":                 {files: []autov1alpha1.EnvFile{{Name: "X", Path: token}}, withoutPods: true, invalid: "without a pod, no variable can be set from a file"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			workspace := &autov1alpha1.Workspace{Name: "app", Spec: autov1alpha1.WorkspaceSpec{EnvFiles: tt.files, Env: tt.env}}
			values := &inputReader{pods: !tt.withoutPods}
			env, err := values.environment(t.Context(), workspace)
			if checkReferenceError(g, err, "", tt.invalid) {
				return
			}
			g.Expect(env).To(HaveLen(1))
			g.Expect(env[0]).To(equalMessage(&agentpb.EnvironmentVariable{
				Name: "ARM_OIDC_TOKEN", Secret: true, Value: &agentpb.EnvironmentVariable_FromFile{FromFile: token},
			}))
		})
	}
}

func TestVariablesThatOnlyAContainerKnowsAreAskedOfTheAgent(t *testing.T) {
	s := newReferenced(t)
	podIP := &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}
	memory := &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.memory"}}
	file := func(optional bool) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: "share", Path: "env", Key: "K", Optional: &optional}}
	}
	text := func(name, value string) *agentpb.EnvironmentVariable {
		return &agentpb.EnvironmentVariable{Name: name, Value: &agentpb.EnvironmentVariable_Text{Text: value}}
	}
	asked := func(name string) *agentpb.EnvironmentVariable {
		return &agentpb.EnvironmentVariable{Name: name, Value: &agentpb.EnvironmentVariable_FromEnv{FromEnv: name}}
	}
	for name, tt := range map[string]struct {
		env     []corev1.EnvVar
		want    []*agentpb.EnvironmentVariable
		invalid string
	}{
		"a field":    {env: []corev1.EnvVar{{Name: "IP", ValueFrom: podIP}}, want: []*agentpb.EnvironmentVariable{asked("IP")}},
		"a resource": {env: []corev1.EnvVar{{Name: "MEMORY", ValueFrom: memory}}, want: []*agentpb.EnvironmentVariable{asked("MEMORY")}},
		"the pod's own name": {
			env:  []corev1.EnvVar{{Name: "NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
			want: []*agentpb.EnvironmentVariable{asked("NAME")},
		},
		"a file": {env: []corev1.EnvVar{{Name: "F", ValueFrom: file(false)}}, want: []*agentpb.EnvironmentVariable{asked("F")}},
		"a file that need not be there is inherited": {
			env:  []corev1.EnvVar{{Name: "F", ValueFrom: file(true)}, {Name: "G", Value: "$(F)"}},
			want: []*agentpb.EnvironmentVariable{asked("G")},
		},
		"what such a variable goes into": {
			env:  []corev1.EnvVar{{Name: "HOST", Value: "h"}, {Name: "IP", ValueFrom: podIP}, {Name: "URL", Value: "http://$(IP)/$(HOST)"}, {Name: "URLS", Value: "$(URL),x"}},
			want: []*agentpb.EnvironmentVariable{text("HOST", "h"), asked("IP"), asked("URL"), asked("URLS")},
		},
		"what it does not go into": {
			env:  []corev1.EnvVar{{Name: "IP", ValueFrom: podIP}, {Name: "A", Value: "$$(IP)"}},
			want: []*agentpb.EnvironmentVariable{text("A", "$(IP)"), asked("IP")},
		},
		"what the namespace of the pod goes into": {
			env:  []corev1.EnvVar{{Name: "STATE", Value: "s3://state/$(POD_NAMESPACE)"}},
			want: []*agentpb.EnvironmentVariable{asked("STATE")},
		},
		"a value that replaces it": {
			env:  []corev1.EnvVar{{Name: "IP", ValueFrom: podIP}, {Name: "IP", Value: "::1"}},
			want: []*agentpb.EnvironmentVariable{text("IP", "::1")},
		},
		"what only the kubelet knows": {
			env:  []corev1.EnvVar{{Name: "API", Value: "https://$(KUBERNETES_SERVICE_HOST)"}, {Name: "FILE", Value: "$(PULUMI_ENV)"}},
			want: []*agentpb.EnvironmentVariable{asked("API"), asked("FILE")},
		},
		"a key that is gone, although the container may have it": {
			env: []corev1.EnvVar{{Name: "PW", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Name: "none", Key: "pw", Optional: new(true)}}},
				{Name: "URL", Value: "app:$(PW)@db"}},
			want: []*agentpb.EnvironmentVariable{text("URL", "app:$(PW)@db")},
		},
		"a placeholder beside a Secret": {
			env: []corev1.EnvVar{{Name: "A", Value: "app-$(ENV)"}, {Name: "TOKEN", ValueFrom: secretKey("credentials", "token")}, {Name: "B", Value: "$(A);$(TOKEN)"}},
			want: []*agentpb.EnvironmentVariable{text("A", "app-$(ENV)"), {Name: "B", Secret: true, Value: &agentpb.EnvironmentVariable_Text{Text: "app-$(ENV);t0ken"}},
				{Name: "TOKEN", Secret: true, Value: &agentpb.EnvironmentVariable_Text{Text: "t0ken"}}},
		},
		"a mixture with a Secret": {
			env:     []corev1.EnvVar{{Name: "IP", ValueFrom: podIP}, {Name: "TOKEN", ValueFrom: secretKey("credentials", "token")}, {Name: "URL", Value: "$(TOKEN)@$(IP)"}},
			invalid: `environment variable "URL" of workspace "app" puts together`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			workspace := &autov1alpha1.Workspace{Namespace: s.namespace, Name: "app"}
			workspace.Spec.Env = tt.env
			values := &inputReader{Reader: inputs.Reader{APIReader: s.client, Namespace: s.namespace}, pods: true}
			env, err := values.environment(t.Context(), workspace)
			if checkReferenceError(g, err, "", tt.invalid) {
				return
			}
			g.Expect(env).To(HaveLen(len(tt.want)))
			for i := range env {
				g.Expect(env[i]).To(equalMessage(tt.want[i]))
			}
		})
	}
}
