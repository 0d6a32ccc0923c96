package state

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
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

func TestALockIsOnlyThatOfAPodBeforeIfItWasTakenWhileAnOperationRanThatWasInterrupted(t *testing.T) {
	at := func(minutes int) *timestamppb.Timestamp {
		return timestamppb.New(time.Date(2026, 11, 21, 10, minutes, 0, 0, time.UTC))
	}
	period := func(start, end int) []*agentpb.Period { return []*agentpb.Period{{Start: at(start), End: at(end)}} }
	host := Host{Name: "app-workspace-0", Program: "pulumi", Exclusive: true, Started: at(30).AsTime()}
	for name, test := range map[string]struct {
		interrupted []*agentpb.Period
		since       *timestamppb.Timestamp
		abandoned   bool
	}{
		"in the middle":             {period(10, 20), at(15), true},
		"in the same second":        {period(10, 20), at(10), true},
		"in an earlier one":         {append(period(25, 28), period(10, 20)...), at(15), true},
		"after it":                  {period(10, 20), at(21), false},
		"before it":                 {period(10, 20), at(9), false},
		"while this agent is there": {period(10, 50), at(40), false},
		"none was interrupted":      {nil, at(15), false},
		"at an unknown time":        {period(10, 20), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			stack := &Stack{Name: "dev", Dir: t.TempDir()}
			holders := []*agentpb.LockHolder{{Host: host.Name, Pid: 4_000_000, Since: test.since}}
			NewWithT(t).Expect(stack.Abandoned(host, test.interrupted, holders)).To(Equal(test.abandoned))
		})
	}
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
