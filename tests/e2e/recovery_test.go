package e2e_test

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// recovery is a cause of trouble that comes and goes outside of the Stack.
type recovery struct {
	name string
	// program is the Stack's; one that returns a number when it is nil.
	program func(*patient) gitserver.Files
	// before breaks the cause for a Stack that is yet to be made, and change makes the Stack depend on it.
	before func(*patient)
	change func(*patient, *pulumiv1.Stack)
	// prepare runs when the Stack exists. after breaks the cause for a Stack that was deployed; it is nil for one that was not.
	prepare, after func(*patient)
	// reasons are those of Ready one of which is seen, and cause that of the Update's Failed; empty when the Stack waits, which is
	// no failure.
	reasons []string
	cause   string
	says    string
	mend    func(*patient)
	// within is how soon after that the Stack is Ready.
	within time.Duration
}

const (
	// soon is enough for an attempt that comes with the retryInterval of these Stacks, on a machine that is busy.
	soon = 45 * time.Second
	// polled is enough where nothing but the interval of --requeue-dependency, 30 seconds, brings the Stack back.
	polled = 75 * time.Second
	// attemptInterval is the retryInterval of these Stacks.
	attemptInterval = 2 * time.Second
)

// failures are the reasons of a Stack whose attempts fail: the first ones, and from the third on.
var failures = []string{pulumiv1.RetryingAfterFailureReason, pulumiv1.UpdateFailedReason}

// patient is a Stack that falls ill.
type patient struct {
	*play
	// dir is a directory of its own.
	dir string
	// artifact is the one that it has to end with.
	artifact *meta.Artifact
	server   *server
}

func newPatient(t *testing.T, name string) *patient {
	t.Helper()
	return &patient{play: begin(t, name), dir: t.TempDir(), server: newServer(t)}
}

// TestCauseThatGoesAwayNeedsNobody breaks what a Stack needs, and mends it again without touching the Stack: no edit, no request, no
// restart, no new revision. The version of pulumi is another such cause, see TestPulumiThatIsTooOldIsToldAndHealsWithIt.
func TestCauseThatGoesAwayNeedsNobody(t *testing.T) {
	suite.Long(t, "each cause that can go away")
	t.Parallel()
	for _, test := range slices.Concat(sourceRecoveries(), gitRecoveries(), referenceRecoveries(), pulumiRecoveries(), backendRecoveries()) {
		t.Run(test.name, func(t *testing.T) {
			p := newPatient(t, "recovery-"+test.name)
			p.fallIll(test)
			p.recover(test)
		})
	}
}

// fallIll brings the Stack into the trouble.
func (p *patient) fallIll(test recovery) {
	program := p.returning(1)
	if test.program != nil {
		program = test.program(p)
	}
	p.artifact = p.put(program)
	if test.before != nil {
		test.before(p)
	}
	p.start(p.artifact, func(s *pulumiv1.Stack) {
		s.Spec.RetryInterval = &metav1.Duration{Duration: attemptInterval}
		if test.change != nil {
			test.change(p, s)
		}
	})
	if test.prepare != nil {
		test.prepare(p)
	}
	if test.after != nil {
		p.Await(ready(p.artifact.Digest))
		test.after(p)
	}
	stack := p.Await(func(s *pulumiv1.Stack) bool {
		return conditions.IsFalse(s, meta.ReadyCondition) && slices.Contains(test.reasons, conditions.GetReason(s, meta.ReadyCondition))
	})
	p.Expect(statuscheck.Message(stack)).To(ContainSubstring(test.says))
	p.Logf("%s: %s", conditions.GetReason(stack, meta.ReadyCondition), statuscheck.Message(stack))
	if test.cause == "" {
		// Waiting is no failure.
		p.Expect(conditions.GetReason(stack, meta.ReconcilingCondition)).To(Equal(pulumiv1.ProgressingWithRetryReason))
		p.Expect(stack.Status.LastUpdate == nil || stack.Status.LastUpdate.Failures == 0).To(BeTrue())
		return
	}
	p.Expect(causes(p)).To(ContainElement(test.cause))
}

// causes are the reasons for which Updates of the Stack failed.
func causes(p *patient) (reasons []string) {
	found := p.Updates()
	for i := range found {
		if conditions.IsTrue(&found[i], autov1alpha1.UpdateFailed) {
			reasons = append(reasons, conditions.GetReason(&found[i], autov1alpha1.UpdateFailed))
		}
	}
	return reasons
}

// recover mends the cause and waits.
func (p *patient) recover(test recovery) {
	stack := &pulumiv1.Stack{}
	p.Get(p.Name, stack)
	generation := stack.Generation
	mended := time.Now()
	test.mend(p)
	p.Patience = test.within
	stack = p.Await(ready(p.artifact.Digest))
	p.Logf("Ready %s after its cause was mended", time.Since(mended).Round(100*time.Millisecond))
	p.Expect(stack.Generation).To(Equal(generation))
	p.Expect(stack.Annotations).NotTo(Or(HaveKey(meta.ReconcileRequestAnnotation), HaveKey(pulumiv1.ReconcileRequestAnnotation)))
	p.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
}

// path is one in the directory of the patient.
func (p *patient) path(names ...string) string {
	return filepath.Join(append([]string{p.dir}, names...)...)
}
