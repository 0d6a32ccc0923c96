package update

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

func TestSourceOfAnOperation(t *testing.T) {
	flux := &autov1alpha1.FluxSource{URL: "http://x/w.tar.gz", Digest: "sha256:w", Dir: "w"}
	project := &autov1alpha1.ProjectInfo{Name: "p", Runtime: "yaml"}
	artifactWith := func(digest, dir string) *proto.StartOperationRequest {
		return &proto.StartOperationRequest{Source: artifactSource(digest, dir)}
	}
	tests := map[string]struct {
		workspace autov1alpha1.WorkspaceSpec
		update    autov1alpha1.UpdateSpec
		pods      bool
		want      *proto.StartOperationRequest
		digest    string
		invalid   string
	}{
		"of the update": {
			workspace: autov1alpha1.WorkspaceSpec{Flux: flux},
			update:    autov1alpha1.UpdateSpec{Source: &autov1alpha1.UpdateSource{URL: "http://x/u.tar.gz", Digest: "sha256:u", Dir: "u"}},
			want:      artifactWith("sha256:u", "u"), digest: "sha256:u",
		},
		"of the workspace": {workspace: autov1alpha1.WorkspaceSpec{Flux: flux}, want: artifactWith("sha256:w", "w"), digest: "sha256:w"},
		"local": {
			workspace: autov1alpha1.WorkspaceSpec{Local: &autov1alpha1.LocalSource{Dir: "d"}},
			want:      &proto.StartOperationRequest{Source: &proto.StartOperationRequest_Local{Local: &proto.LocalSource{Dir: "d"}}},
		},
		"no program for a destroy": {
			workspace: autov1alpha1.WorkspaceSpec{ProjectInfo: project}, update: autov1alpha1.UpdateSpec{Type: autov1alpha1.UpdateTypeDestroy},
			want: &proto.StartOperationRequest{Source: &proto.StartOperationRequest_Project{Project: &proto.ProjectSource{Name: "p", Runtime: "yaml"}}},
		},
		"no program for an up": {
			workspace: autov1alpha1.WorkspaceSpec{ProjectInfo: project}, update: autov1alpha1.UpdateSpec{Type: autov1alpha1.UpdateTypeUp},
			invalid: "enough for destroy and refresh but not for up",
		},
		"git":     {workspace: autov1alpha1.WorkspaceSpec{Git: &autov1alpha1.GitSource{}}, invalid: "which operations cannot use"},
		"nothing": {invalid: "has a source"},
		"nothing, in a pod": {
			pods: true, want: &proto.StartOperationRequest{Source: &proto.StartOperationRequest_Local{Local: &proto.LocalSource{}}},
		},
		"git, in a pod": {pods: true, workspace: autov1alpha1.WorkspaceSpec{Git: &autov1alpha1.GitSource{}}, invalid: "which operations cannot use"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			workspace := &autov1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "app"}, Spec: tt.workspace}
			update := &autov1alpha1.Update{Spec: tt.update}
			request := &proto.StartOperationRequest{}
			err := setSource(request, workspace, update, tt.pods)
			if checkReferenceError(g, err, "", tt.invalid) {
				return
			}
			g.Expect(request).To(equalMessage(tt.want))
			reference := artifactOf(workspace, update)
			if tt.digest == "" {
				g.Expect(reference).To(BeNil())
				return
			}
			g.Expect(reference.Digest).To(Equal(tt.digest))
		})
	}
}

func TestEveryTypeIsAnOperation(t *testing.T) {
	g := NewWithT(t)
	seen := map[proto.OperationKind]bool{}
	for _, kind := range operationKinds {
		seen[kind] = true
	}
	g.Expect(seen).To(HaveLen(len(proto.OperationKind_name) - 1))

	_, err := (&Reconciler{}).describeOperation(t.Context(), &autov1alpha1.Workspace{}, &autov1alpha1.Update{Spec: autov1alpha1.UpdateSpec{Type: "import"}})
	g.Expect(err).To(MatchError(ContainSubstring(`"import" is not one of`)))
}

func TestLogLevelIsBounded(t *testing.T) {
	g := NewWithT(t)
	workspace := &autov1alpha1.Workspace{Spec: autov1alpha1.WorkspaceSpec{PulumiLogLevel: 99}}
	g.Expect(optionsOf(workspace, &autov1alpha1.Update{}).GetLogLevel()).To(BeEquivalentTo(maxLogLevel))
}
