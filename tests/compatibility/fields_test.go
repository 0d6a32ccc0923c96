package compatibility_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
)

// use is a manifest with a field that does what it is for.
type use struct {
	// field is the path below spec, and the name of the test.
	field string
	// manifest is the file below testdata/manifests, and the name of its Stack.
	manifest string
	// patch changes the Stack in it, as kubectl patch --type=merge does.
	patch string
	// shows checks what the field has done, once the Stack is Ready; nil when nothing else is to be seen.
	shows func(s *play, stack *pulumiv1.Stack)
}

func testUses(t *testing.T, uses []use) {
	t.Parallel()
	for _, u := range uses {
		t.Run(u.field, func(t *testing.T) {
			t.Parallel()
			s := newPlay(t, namespaceFor("use", u.field))
			s.Expect(s.applyAll(s.manifest("manifests/"+u.manifest, u.patch))).To(Succeed())
			if stack := s.awaitReady(u.manifest); u.shows != nil {
				u.shows(s, stack)
			}
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
			s := newPlay(t, namespaceFor("misuse", m.field))
			err := s.applyAll(s.manifest("manifests/"+m.manifest, m.patch))
			if m.refused != "" {
				s.Expect(err).To(MatchError(ContainSubstring(m.refused)))
				return
			}
			s.Succeed(err)
			stack := s.AwaitStack(m.manifest, notReady(m.reason, m.says))
			s.Expect(len(statuscheck.Message(stack))).To(BeNumerically("<", 5000))
			s.Expect(stack.Status.LastAppliedRevision).To(BeEmpty(), "nothing may be deployed from a spec that is wrong")
			if m.heal != "" {
				s.Expect(s.applyAll(s.parse(m.heal))).To(Succeed())
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
		return statuscheck.NotReady(reason)(stack) && strings.Contains(statuscheck.Message(stack), says)
	}
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
func (s *play) settles(name string, is func(*pulumiv1.Stack) bool) {
	stack := &pulumiv1.Stack{}
	s.Consistently(func(g Gomega) {
		g.Expect(system.Client.Get(s.Context(), s.Key(name), stack)).To(Succeed())
		g.Expect(is(stack)).To(BeTrue(), "conditions: %v\nlast update: %+v", stack.Status.Conditions, stack.Status.LastUpdate)
	}).WithTimeout(2 * time.Second).Should(Succeed())
}
