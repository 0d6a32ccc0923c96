package update

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

func workspaceThatLogsIn(expiration *metav1.Duration) *autov1alpha1.Workspace {
	return &autov1alpha1.Workspace{Name: "app", Spec: autov1alpha1.WorkspaceSpec{
		PulumiCloud: &autov1alpha1.PulumiCloud{OIDC: autov1alpha1.PulumiCloudOIDC{Organization: "acme", Team: "network", Expiration: expiration}},
	}}
}

func TestAccessTokenIsValidForLongerThanTheOperationMayTake(t *testing.T) {
	for name, tt := range map[string]struct {
		timeout    time.Duration
		expiration *metav1.Duration
		want       time.Duration
	}{
		"no timeout":           {want: time.Hour},
		"a short timeout":      {timeout: 10 * time.Minute, want: time.Hour},
		"a long timeout":       {timeout: 3 * time.Hour, want: 3*time.Hour + 15*time.Minute},
		"what the user wants":  {timeout: 3 * time.Hour, expiration: &metav1.Duration{Duration: 2 * time.Hour}, want: 2 * time.Hour},
		"less than by default": {expiration: &metav1.Duration{Duration: 5 * time.Minute}, want: 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			request := &agentpb.StartOperationRequest{}
			if tt.timeout > 0 {
				request.Timeout = durationpb.New(tt.timeout)
			}
			login, err := (&inputReader{pods: true}).login(workspaceThatLogsIn(tt.expiration), request)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(login).To(equalMessage(&agentpb.PulumiCloudLogin{
				Organization: "acme", Team: "network", Expiration: durationpb.New(tt.want), TokenFile: "/var/run/secrets/pulumi-cloud/token",
			}))
		})
	}
}

func TestLoginIsRefusedWithoutAPodOrWithAnAccessToken(t *testing.T) {
	text := func(value string) *agentpb.EnvironmentVariable {
		return &agentpb.EnvironmentVariable{Name: accessTokenVariable, Value: &agentpb.EnvironmentVariable_Text{Text: value}}
	}
	fromEnv := &agentpb.EnvironmentVariable{Name: accessTokenVariable, Value: &agentpb.EnvironmentVariable_FromEnv{FromEnv: "X"}}
	bucket := func(w *autov1alpha1.Workspace) {
		w.Spec.Env = []corev1.EnvVar{{Name: "PULUMI_BACKEND_URL", Value: "s3://state"}}
	}
	for name, tt := range map[string]struct {
		withoutPods bool
		env         []*agentpb.EnvironmentVariable
		change      func(*autov1alpha1.Workspace)
		invalid     string
	}{
		"a pod":                           {},
		"no pod":                          {withoutPods: true, invalid: "without a pod, there is no token of a ServiceAccount"},
		"an access token of a Secret":     {env: []*agentpb.EnvironmentVariable{text("pul-canary")}, invalid: "exclude each other"},
		"an access token of the pod":      {env: []*agentpb.EnvironmentVariable{fromEnv}, invalid: "exclude each other"},
		"an empty variable":               {env: []*agentpb.EnvironmentVariable{text("")}},
		"a Workspace made for a bucket":   {change: bucket, invalid: "the backend is another one"},
		"a Workspace that does not login": {withoutPods: true, change: func(w *autov1alpha1.Workspace) { w.Spec.PulumiCloud = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			workspace := workspaceThatLogsIn(nil)
			if tt.change != nil {
				tt.change(workspace)
			}
			login, err := (&inputReader{pods: !tt.withoutPods}).login(workspace, &agentpb.StartOperationRequest{Env: tt.env})
			if checkReferenceError(g, err, "", tt.invalid) {
				g.Expect(err.Error()).NotTo(ContainSubstring("canary"))
				return
			}
			g.Expect(login == nil).To(Equal(workspace.Spec.PulumiCloud == nil))
		})
	}
}
