package stack

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// former is a settled Stack as the Pulumi Kubernetes Operator leaves it, with what it recorded as the commit.
func former(commit string) *observation {
	o := settled()
	o.stack.Spec.FluxSource = &pulumiv1.FluxSource{}
	o.stack.Status.Deployed = false
	o.stack.Status.LastUpdate.LastAttemptedCommit, o.stack.Status.LastUpdate.LastSuccessfulCommit = commit, commit
	return o
}

func TestStackOfTheFormerControllerIsNotUpdatedForThat(t *testing.T) {
	for name, commit := range map[string]string{"revision": "main@sha1:a", "digest": "sha256:a"} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := former(commit)
			o.stack.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "long ago"}
			takeOver(o)
			g.Expect(decide(*o).action).To(Equal(actionSettle))
			g.Expect(o.stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal("sha256:a"))
			g.Expect(o.stack.Status.LastUpdate.Revision).To(Equal("main@sha1:a"))
			g.Expect(o.stack.Status.Deployed).To(BeTrue())
			g.Expect(o.stack.Status.History).To(HaveLen(1))

			// From here on it is like any other.
			o.stack.Annotations[meta.ReconcileRequestAnnotation] = "now"
			takeOver(o)
			g.Expect(decide(*o).action).To(Equal(actionUpdate))
		})
	}
}

func TestGitStackOfTheFormerControllerIsNotUpdatedForThat(t *testing.T) {
	g := NewWithT(t)
	o := following("1")
	o.stack.Status.Deployed = false
	o.stack.Status.LastUpdate.Revision, o.stack.Status.LastUpdate.ContentDigest = "", ""
	looking(o)
	takeOver(o)
	g.Expect(o.stack.Status.History).To(BeEmpty(), "it is not judged before its repository was looked at")
	g.Expect(decide(*o).quiet).To(BeTrue())

	o.artifact, o.sourceProblem = commit("1"), nil
	takeOver(o)
	g.Expect(decide(*o).action).To(Equal(actionSettle))
	g.Expect(o.stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal("1"))
	g.Expect(o.stack.Status.LastUpdate.Revision).To(Equal("main@sha1:1"))
	g.Expect(o.stack.Status.Deployed).To(BeTrue())

	o.artifact = commit("2")
	takeOver(o)
	g.Expect(decide(*o).action).To(Equal(actionUpdate))
}

func TestProgramStackOfTheFormerControllerIsNotUpdatedForThat(t *testing.T) {
	g := NewWithT(t)
	o := former("1") // the generation of the Program
	o.stack.Spec.FluxSource, o.stack.Spec.ProgramRef = nil, &pulumiv1.ProgramReference{Name: "app"}
	o.artifact.Program, o.artifact.Revision = &autov1alpha1.ProgramSource{Name: "app"}, "1"
	takeOver(o)
	g.Expect(decide(*o).action).To(Equal(actionSettle))
	g.Expect(o.stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal("sha256:a"))
}

func TestStackOfTheFormerControllerFollowsItsSource(t *testing.T) {
	g := NewWithT(t)
	o := former("main@sha1:old")
	takeOver(o)
	d := decide(*o)
	g.Expect(d.action).To(Equal(actionUpdate))
	g.Expect(d.fresh).To(BeTrue())
}

func TestStackOfTheFormerControllerIsNotJudgedBeforeItsSourceIsKnown(t *testing.T) {
	g := NewWithT(t)
	o := former("main@sha1:a")
	o.artifact = nil
	takeOver(o)
	g.Expect(o.stack.Status.History).To(BeEmpty())
}

func TestPreviewOfTheFormerControllerNeverDestroys(t *testing.T) {
	g := NewWithT(t)
	o := former("main@sha1:a")
	o.stack.Spec.Preview, o.stack.Spec.DestroyOnFinalize = true, true
	o.stack.Status.LastUpdate.Type = autov1alpha1.UpdateTypePreview
	takeOver(o)
	g.Expect(nothingToDestroy(o.stack)).NotTo(BeEmpty())

	o = former("main@sha1:a")
	o.stack.Spec.DestroyOnFinalize = true
	takeOver(o)
	g.Expect(nothingToDestroy(o.stack)).To(BeEmpty())
}
