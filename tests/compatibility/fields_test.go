package compatibility_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// use is a manifest with a field that does what it is for.
type use struct {
	// field is the path below spec, and the name of the test.
	field string
	// manifest is the file below testdata/manifests, and the name of its Stack.
	manifest string
	// patch changes the Stack in it, as kubectl patch --type=merge does.
	patch string
	// shows checks what the field has done, once the Stack is Ready.
	shows func(s *scene, stack *pulumiv1.Stack)
}

func testUses(t *testing.T, uses []use) {
	t.Parallel()
	for _, u := range uses {
		t.Run(u.field, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, namespaceFor("use", u.field))
			s.g.Expect(s.applyAll(s.manifest("manifests/"+u.manifest, u.patch))).To(Succeed())
			u.shows(s, s.awaitReady(u.manifest))
		})
	}
}

// misuse is a manifest with a field that cannot work.
type misuse struct {
	// field is the path below spec, optionally with what is wrong with it in parentheses; the name of the test.
	field string
	// manifest and patch are as in use. The manifest alone is what heals the Stack.
	manifest, patch string
	// refused is what the API server says; empty when it admits the manifest.
	refused string
	// reason and says are that of the condition Ready, and a part of its message. There is no reason for a Stack that becomes
	// Ready all the same.
	reason, says string
	// heal is applied to mend it, instead of the manifest as it is.
	heal string
}

func testMisuses(t *testing.T, misuses []misuse) {
	t.Parallel()
	for _, m := range misuses {
		t.Run(m.field, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, namespaceFor("misuse", m.field))
			err := s.applyAll(s.manifest("manifests/"+m.manifest, m.patch))
			if m.refused != "" {
				s.g.Expect(err).To(MatchError(ContainSubstring(m.refused)))
				return
			}
			s.g.Expect(err).NotTo(HaveOccurred())
			stack := s.await(m.manifest, notReady(m.reason, m.says))
			s.g.Expect(len(messageOf(stack))).To(BeNumerically("<", 5000))
			s.g.Expect(stack.Status.LastAppliedRevision).To(BeEmpty(), "nothing may be deployed from a spec that is wrong")
			if m.heal != "" {
				s.g.Expect(s.applyAll(s.parse(m.heal))).To(Succeed())
			} else {
				s.replace("manifests/" + m.manifest)
			}
			s.awaitReady(m.manifest)
		})
	}
}

// notReady is a Stack whose Ready condition is false for the reason, with a message that has the text in it.
func notReady(reason, says string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool {
		return conditions.IsFalse(stack, meta.ReadyCondition) && conditions.GetReason(stack, meta.ReadyCondition) == reason &&
			strings.Contains(messageOf(stack), says)
	}
}

func messageOf(stack *pulumiv1.Stack) string {
	return conditions.GetMessage(stack, meta.ReadyCondition)
}

// namespaceFor makes a name for a namespace from that of a test.
func namespaceFor(kind, test string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, kind+"-"+test)
	return strings.Trim(name[:min(len(name), 63)], "-")
}

// settles expects that a Stack stays as it is for longer than the controller needs to look at it again.
func (s *scene) settles(name string, is func(*pulumiv1.Stack) bool) {
	stack := &pulumiv1.Stack{}
	s.g.Consistently(func(g Gomega) {
		g.Expect(system.Client.Get(s.t.Context(), s.key(name), stack)).To(Succeed())
		g.Expect(is(stack)).To(BeTrue(), "conditions: %v\nlast update: %+v", stack.Status.Conditions, stack.Status.LastUpdate)
	}).WithTimeout(2 * time.Second).WithPolling(pollInterval).Should(Succeed())
}
