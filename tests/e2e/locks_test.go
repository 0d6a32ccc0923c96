package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// lockDirectory is where the backend has the locks of the stack.
func (p *play) lockDirectory() string {
	return filepath.Join(strings.TrimPrefix(system.BackendURL, "file://"), ".pulumi", "locks", "organization", p.Name, "dev")
}

// lock puts the lock of a process on another host into the backend, as pulumi does, and returns what removes it.
func (p *play) lock() (release func()) {
	p.Helper()
	path := filepath.Join(p.lockDirectory(), "11111111-2222-3333-4444-555555555555.json")
	p.Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
	content := `{"pid":4711,"username":"alice","hostname":"laptop","timestamp":"2026-01-21T02:26:40Z"}`
	p.Expect(os.WriteFile(path, []byte(content), 0o644)).To(Succeed())
	return func() { p.Expect(os.Remove(path)).To(Succeed()) }
}

// conflicts is a Stack that met the lock so often, or more.
func conflicts(count int64) func(*pulumiv1.Stack) bool {
	return func(s *pulumiv1.Stack) bool {
		return s.Status.LastUpdate != nil && s.Status.LastUpdate.Conflicts >= count && s.Status.CurrentUpdate == nil
	}
}

func TestLockOfAnotherIsShownAndWaitedFor(t *testing.T) {
	suite.Long(t, "waits for the pauses between attempts")
	t.Parallel()
	for _, test := range []struct {
		name  string
		eager bool
		// tries is how many attempts are seen to meet the lock.
		tries int64
	}{
		{"locked", false, 2},
		{"locked-eager", true, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := begin(t, test.name)
			watcher, err := statuscheck.Watch(p.Context(), system.Client, p.Name)
			p.Succeed(err)
			stack, _ := p.deployed(func(s *pulumiv1.Stack) {
				s.Spec.RetryOnUpdateConflict, s.Spec.UpdateHistoryLimit = test.eager, new(int32(3))
			})
			first := stack.Status.LastUpdate.Name

			release := p.lock()
			next := p.publish(p.returning(2))
			stack = p.Await(conflicts(1))
			p.Expect(notReady(pulumiv1.UpdateConflictReason)(stack)).To(BeTrue(), fmt.Sprint(stack.Status.Conditions))
			p.Expect(statuscheck.Message(stack)).To(ContainSubstring("the stack is locked by alice@laptop (pid 4711) since 2026-01-21T02:26:40Z"))
			p.Expect(conditions.GetReason(stack, meta.ReconcilingCondition)).To(Equal(pulumiv1.UpdateConflictReason))
			p.Expect(conditions.IsStalled(stack)).To(BeFalse())

			stack = p.Await(conflicts(test.tries))
			p.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
			p.Expect(stack.Status.LastUpdate.Interruptions).To(BeZero())
			p.Expect(stack.Status.History).To(HaveLen(2))
			p.Eventually(p.Updates).Should(HaveLen(2), "the first one, and the last one that met the lock")

			released := time.Now()
			release()
			stack = p.Await(ready(next.Digest))
			p.Logf("Ready %s after the release", time.Since(released).Round(time.Second))
			p.Expect(stack.Status.LastUpdate.Conflicts).To(BeZero())
			p.Expect(stack.Status.LastUpdate.ConflictsSince).To(BeNil())
			p.Eventually(p.Updates).Should(ConsistOf(HaveField("Name", first), HaveField("Name", stack.Status.LastUpdate.Name)))
			p.Expect(p.events("StackUpdateConflictDetected")).To(ConsistOf(ContainSubstring("alice@laptop")))
			p.Expect(p.events("StackUpdateFailure")).To(BeEmpty())
			p.Expect(p.events("StackUpdateDetected")).To(HaveLen(2))
			checked, err := watcher.Stop()
			p.Succeed(err)
			p.Expect(checked).To(BeNumerically(">", 5))
		})
	}
}
