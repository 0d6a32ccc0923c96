package state

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestLocksAreRead(t *testing.T) {
	g := NewWithT(t)
	holders := ParseLocks("error: the stack is currently locked by 2 lock(s). Either wait …\n" +
		"  file:///s/.pulumi/locks/a.json: created by me@corp@pod-0 (pid 42) at 2026-11-21T02:26:40Z\n" +
		"  file:///s/.pulumi/locks/b.json: created by you@pod-1 (pid 43) at yesterday\n")
	g.Expect(holders).To(HaveLen(2))
	g.Expect([]any{holders[0].GetUser(), holders[0].GetHost(), holders[0].GetPid(), holders[0].GetSince().GetSeconds()}).To(Equal([]any{"me@corp", "pod-0", int64(42), int64(1795228000)}))
	g.Expect([]any{holders[1].GetUser(), holders[1].GetHost(), holders[1].GetPid(), holders[1].GetSince()}).To(HaveExactElements("you", "pod-1", int64(43), BeNil()))
	g.Expect(ParseLocks("created by you@pod-1 (pid 43) at 2026-11-21T02:26:40Z")).To(BeEmpty())
}

func FuzzParseLocks(f *testing.F) {
	f.Add("the stack is currently locked by 1 lock(s).\n  file:///a: created by u@h (pid 1) at 2026-11-21T02:26:40Z")
	f.Fuzz(func(t *testing.T, text string) {
		for _, holder := range ParseLocks(text) {
			if holder.GetHost() == "" || holder.GetPid() < 0 {
				t.Fatalf("unusable holder %v", holder)
			}
		}
	})
}
