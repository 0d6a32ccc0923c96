package e2e_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// annotateAsUsersDo annotates the Stack with kubectl, as users do.
func (p *fixture) annotateAsUsersDo(annotation string) {
	p.Helper()
	_, err := system.ControlPlane.Kubectl(p.Context(), "--namespace="+p.Name, "annotate", "stack/"+p.Name, annotation, "--overwrite")
	p.Succeed(err)
}

// TestAnnotationOfTutorialsDeploysTheLatestCommit runs `kubectl annotate stack/NAME pulumi.com/last-update=$(date +%s) --overwrite`.
func TestAnnotationOfTutorialsDeploysTheLatestCommit(t *testing.T) {
	suite.Long(t, "further requests; see TestRequestsRunAnUpdateEach")
	p := alone(t, "kicked")
	repository, first := p.deployedFromGit(p.returning(1), func(s *pulumiv1.Stack) {
		s.Spec.ResyncFrequencySeconds = 3600 // the branch is not polled during the test
		s.Annotations = map[string]string{pulumiv1.LastUpdateAnnotation: "at its creation"}
	})
	p.Expect(p.Await(ready(first)).Status.ObservedLastUpdateRequest).To(Equal("at its creation"))
	p.Expect(p.Updates()).To(HaveLen(1))
	handled := func(commit, value string) func(*pulumiv1.Stack) bool {
		return func(s *pulumiv1.Stack) bool { return ready(commit)(s) && s.Status.ObservedLastUpdateRequest == value }
	}

	next := p.commit(repository, p.returning(2))
	p.annotateAsUsersDo("pulumi.com/last-update=1763799600")
	p.Await(handled(next, "1763799600"))
	p.Expect(p.Updates()).To(HaveLen(2))

	// The annotation also runs the commit that is already deployed.
	p.annotateAsUsersDo("pulumi.com/last-update=1763799601")
	p.Await(handled(next, "1763799601"))
	p.Expect(p.Updates()).To(HaveLen(3))

	// Each value is handled once, and other annotations have no effect.
	p.annotateAsUsersDo("pulumi.com/last-update=1763799601")
	p.annotateAsUsersDo("example.com/last-update=1763799602")
	p.restartController()
	p.annotateAsUsersDo("pulumi.com/last-update-")
	p.annotateAsUsersDo(meta.ReconcileRequestAnnotation + "=last")
	p.Await(func(s *pulumiv1.Stack) bool { return ready(next)(s) && s.Status.LastHandledReconcileAt == "last" })
	p.Expect(p.Updates()).To(HaveLen(4), "only the last request ran something")
}

// TestManifestThatIsAppliedAgainRunsNothing starts with a Stack as the Pulumi Kubernetes Operator stores it: without the fields whose value
// is false. The fields come back when the manifest is applied.
func TestManifestThatIsAppliedAgainRunsNothing(t *testing.T) {
	p := alone(t, "former-applied")
	_, artifact := p.deployed()
	p.stopController()
	recorded := p.leftByTheFormerController(artifact.Revision)
	p.startController()
	stack := p.Await(func(s *pulumiv1.Stack) bool { return ready(artifact.Digest)(s) && len(s.Status.History) == 1 })
	generation := stack.Generation

	handled := func(s *pulumiv1.Stack) bool {
		return ready(artifact.Digest)(s) && s.Status.LastUpdate.Generation == s.Generation
	}
	apply := func(fields string) {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec": `+fields+`}`))
		p.Expect(system.Client.Patch(p.Context(), stack, patch)).To(Succeed())
	}
	apply(`{"refresh": false, "preview": false, "targets": [], "resyncFrequencySeconds": 0, "secretsProvider": ""}`)
	p.Expect(stack.Generation).To(BeNumerically(">", generation), "the API server takes it for another specification")
	stack = p.Await(handled)
	p.Expect(stack.Status.LastUpdate.Name).To(Equal(recorded.Name))

	// A new value runs an update. The same specification in another form does not.
	apply(`{"refresh": true}`)
	ran := p.awaitNext(stack).Status.LastUpdate.Name
	apply(`{"targetDependents": false}`)
	p.Await(handled)
	p.stopController()
	apply(`{"expectNoRefreshChanges": false}`)
	p.startController()
	stack = p.Await(handled)
	p.Expect(stack.Status.LastUpdate.Name).To(Equal(ran))
}
