package update

import (
	"testing"

	. "github.com/onsi/gomega"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

func TestSourceOfAnOperation(t *testing.T) {
	project := &autov1alpha1.ProjectInfo{Name: "p", Runtime: "yaml"}
	artifactWith := func(digest, dir string) *agentpb.StartOperationRequest {
		return &agentpb.StartOperationRequest{Source: &agentpb.StartOperationRequest_Artifact{
			Artifact: &agentpb.ArtifactSource{Digest: digest, Dir: dir},
		}}
	}
	tests := map[string]struct {
		workspace autov1alpha1.WorkspaceSpec
		update    autov1alpha1.UpdateSpec
		source    *autov1alpha1.UpdateSource
		pods      bool
		want      *agentpb.StartOperationRequest
		digest    string
		invalid   string
	}{
		"an artifact": {
			workspace: autov1alpha1.WorkspaceSpec{Local: &autov1alpha1.LocalSource{Dir: "d"}},
			source:    &autov1alpha1.UpdateSource{URL: "http://x/u.tar.gz", Digest: "sha256:u", Dir: "u"},
			digest:    "sha256:u", want: artifactWith("sha256:u", "u"),
		},
		"an artifact that was made": {
			source: &autov1alpha1.UpdateSource{Git: &autov1alpha1.GitSource{}, Dir: "g"}, digest: "sha256:made", want: artifactWith("sha256:made", "g"),
		},
		"local": {
			workspace: autov1alpha1.WorkspaceSpec{Local: &autov1alpha1.LocalSource{Dir: "d"}},
			want:      &agentpb.StartOperationRequest{Source: &agentpb.StartOperationRequest_Local{Local: &agentpb.LocalSource{Dir: "d"}}},
		},
		"no program for a destroy": {
			workspace: autov1alpha1.WorkspaceSpec{ProjectInfo: project}, update: autov1alpha1.UpdateSpec{Type: autov1alpha1.UpdateTypeDestroy},
			want: &agentpb.StartOperationRequest{Source: &agentpb.StartOperationRequest_Project{Project: &agentpb.ProjectSource{Name: "p", Runtime: "yaml"}}},
		},
		"no program, as the update says": {
			workspace: autov1alpha1.WorkspaceSpec{Local: &autov1alpha1.LocalSource{Dir: "d"}},
			update:    autov1alpha1.UpdateSpec{Type: autov1alpha1.UpdateTypeRefresh, ProjectInfo: project},
			want:      &agentpb.StartOperationRequest{Source: &agentpb.StartOperationRequest_Project{Project: &agentpb.ProjectSource{Name: "p", Runtime: "yaml"}}},
		},
		"no program for a preview, as the update says": {
			update: autov1alpha1.UpdateSpec{Type: autov1alpha1.UpdateTypePreview, ProjectInfo: project}, invalid: "enough for refresh and destroy but not for preview",
		},
		"no program for an up": {
			workspace: autov1alpha1.WorkspaceSpec{ProjectInfo: project}, update: autov1alpha1.UpdateSpec{Type: autov1alpha1.UpdateTypeUp},
			invalid: "enough for destroy and refresh but not for up",
		},
		"nothing": {invalid: "has a source"},
		"nothing, in a pod": {
			pods: true, want: &agentpb.StartOperationRequest{Source: &agentpb.StartOperationRequest_Local{Local: &agentpb.LocalSource{}}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := &observation{
				workspace: &autov1alpha1.Workspace{Name: "app", Spec: tt.workspace},
				update:    &autov1alpha1.Update{Spec: tt.update},
				source:    tt.source,
				artifact:  artifactView{ready: true, digest: tt.digest},
			}
			request := &agentpb.StartOperationRequest{}
			err := setSource(request, o, tt.pods)
			if checkReferenceError(g, err, "", tt.invalid) {
				return
			}
			g.Expect(request).To(equalMessage(tt.want))
		})
	}
}

func TestEveryTypeIsAnOperation(t *testing.T) {
	g := NewWithT(t)
	seen := map[agentpb.OperationKind]bool{}
	for kind := range operationKinds {
		for _, only := range []bool{false, true} {
			seen[operationKind(&autov1alpha1.UpdateSpec{Type: kind, PreviewOnly: &only})] = true
		}
		planned := operationKind(&autov1alpha1.UpdateSpec{Type: kind, Plan: &autov1alpha1.PlanReference{Name: "plan"}})
		g.Expect(planned.Planned() || planned == agentpb.OperationKind_OPERATION_KIND_UNSPECIFIED).To(BeTrue(), "without its plan, nothing is done")
		seen[planned] = true
	}
	g.Expect(seen).To(HaveLen(len(agentpb.OperationKind_name)))

	for kind := range operationKinds {
		g.Expect(incomplete(&autov1alpha1.Update{Spec: autov1alpha1.UpdateSpec{StackName: "dev", Type: kind}})).To(BeEmpty())
	}
	g.Expect(incomplete(&autov1alpha1.Update{Spec: autov1alpha1.UpdateSpec{StackName: "dev", Type: "import"}})).To(ContainSubstring(`"import" is not one of`))
}

func TestLogLevelIsBounded(t *testing.T) {
	g := NewWithT(t)
	workspace := &autov1alpha1.Workspace{Spec: autov1alpha1.WorkspaceSpec{PulumiLogLevel: 99}}
	g.Expect(optionsOf(workspace, &autov1alpha1.Update{}).GetLogLevel()).To(BeEquivalentTo(maxLogLevel))
}
