package cli_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/apis/meta"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// The last Update may have had options that the next one does not have: a forced one refreshes, and a correction of drift has targets.
func TestDiffHasTheOptionsOfTheNextUpdate(t *testing.T) {
	suite.Long(t, "further previews; see TestDiffShowsTheResourcesThatWouldChangeAndChangesNothing")
	p := begin(t, "diff-next")
	for _, annotation := range []string{meta.ForceRequestAnnotation, meta.ReconcileRequestAnnotation} {
		p.Change(systemtest.Annotate(annotation, "now"))
	}
	stack := p.Await(func(s *pulumiv1.Stack) bool {
		return s.Status.LastHandledForceAt == "now" && s.Status.CurrentUpdate == nil
	})
	p.Expect(p.LastUpdate(stack).Spec.Refresh).To(HaveValue(BeTrue()))
	p.says(0, "diff stack diff-next --keep", "nothing would change")
	previews := 0
	for _, update := range p.Updates() {
		if strings.HasPrefix(update.Name, "diff-next-preview-") {
			previews++
			p.Expect(update.Spec.Refresh).To(BeNil())
		}
	}
	p.Expect(previews).To(Equal(1))
}
