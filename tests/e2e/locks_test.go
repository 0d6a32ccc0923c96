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
)

// lock puts the lock of a process on another host into the backend, as pulumi does, and returns what removes it.
func lock(g *WithT, project string) (release func()) {
	path := filepath.Join(strings.TrimPrefix(system.BackendURL, "file://"), ".pulumi", "locks", "organization", project, "dev",
		"11111111-2222-3333-4444-555555555555.json")
	g.Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
	content := `{"pid":4711,"username":"alice","hostname":"laptop","timestamp":"2026-01-21T02:26:40Z"}`
	g.Expect(os.WriteFile(path, []byte(content), 0o644)).To(Succeed())
	return func() { g.Expect(os.Remove(path)).To(Succeed()) }
}

// conflicts is a Stack that met the lock so often, or more.
func conflicts(count int64) func(*pulumiv1.Stack) bool {
	return func(s *pulumiv1.Stack) bool {
		return s.Status.LastUpdate != nil && s.Status.LastUpdate.Conflicts >= count && s.Status.CurrentUpdate == nil
	}
}

func TestLockOfAnotherIsShownAndWaitedFor(t *testing.T) {
	for _, test := range []struct {
		name  string
		eager bool
		// tries is how many attempts are seen to meet the lock, within is how soon after its release the Stack is Ready.
		tries  int64
		within time.Duration
	}{
		{"locked", false, 2, 45 * time.Second},
		{"locked-eager", true, 3, 30 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			watcher, err := statuscheck.Watch(t.Context(), system.Client, test.name)
			g.Expect(err).NotTo(HaveOccurred())
			limit := int32(3)
			stack, _ := deployed(t, g, test.name, func(s *pulumiv1.Stack) {
				s.Spec.RetryOnUpdateConflict, s.Spec.UpdateHistoryLimit = test.eager, &limit
			})
			first := stack.Status.LastUpdate.Name

			release := lock(g, test.name)
			next := artifacts.put("v2", packed(yamlProgram(test.name, "outputs:", "  x: 2")))
			g.Expect(publish(t.Context(), test.name, next)).To(Succeed())
			stack = await(t.Context(), g, test.name, conflicts(1))
			g.Expect(notReady(pulumiv1.UpdateConflictReason)(stack)).To(BeTrue(), fmt.Sprint(stack.Status.Conditions))
			g.Expect(readyMessage(stack)).To(ContainSubstring("the stack is locked by alice@laptop (pid 4711) since 2026-01-21T02:26:40Z"))
			g.Expect(conditions.GetReason(stack, meta.ReconcilingCondition)).To(Equal(pulumiv1.UpdateConflictReason))
			g.Expect(conditions.IsStalled(stack)).To(BeFalse())

			stack = await(t.Context(), g, test.name, conflicts(test.tries))
			g.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
			g.Expect(stack.Status.LastUpdate.Interruptions).To(BeZero())
			g.Expect(stack.Status.History).To(HaveLen(2))
			g.Eventually(func() int { return len(updates(t.Context(), g, test.name)) }).WithTimeout(patience).WithPolling(pollInterval).
				Should(Equal(2), "the first one, and the last one that met the lock")

			released := time.Now()
			release()
			stack = await(t.Context(), g, test.name, ready(next.Digest))
			g.Expect(time.Since(released)).To(BeNumerically("<", test.within))
			t.Logf("Ready %s after the release", time.Since(released).Round(time.Second))
			g.Expect(stack.Status.LastUpdate.Conflicts).To(BeZero())
			g.Expect(stack.Status.LastUpdate.ConflictsSince).To(BeNil())
			g.Eventually(func() []string {
				var names []string
				for _, update := range updates(t.Context(), g, test.name) {
					names = append(names, update.Name)
				}
				return names
			}).WithTimeout(patience).WithPolling(pollInterval).Should(ConsistOf(first, stack.Status.LastUpdate.Name))
			g.Expect(eventsOf(t.Context(), g, test.name, "StackUpdateConflictDetected")).To(ConsistOf(ContainSubstring("alice@laptop")))
			g.Expect(eventsOf(t.Context(), g, test.name, "StackUpdateFailure")).To(BeEmpty())
			g.Expect(eventsOf(t.Context(), g, test.name, "StackUpdateDetected")).To(HaveLen(2))
			checked, err := watcher.Stop()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(checked).To(BeNumerically(">", 5))
		})
	}
}
