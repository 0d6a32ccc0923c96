package stack

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// A clock that was wrong leaves a time that is far from now.
func TestAClockThatWasWrongKeepsNoStackWaiting(t *testing.T) {
	const century = 100 * 365 * 24 * time.Hour
	for name, since := range map[string]time.Duration{"a century ahead": -century, "an hour ahead": -time.Hour, "a century behind": century} {
		resynced := settled()
		resynced.stack.Spec.ContinueResyncOnCommitMatch = true
		resynced.stack.Status.LastUpdate.LastResyncTime = ago(since)
		deleted := deleting()
		deleted.stack.Status.LastUpdate = failed(9, since).stack.Status.LastUpdate
		deleted.stack.Status.LastUpdate.Type = autov1alpha1.UpdateTypeDestroy
		conflict := failed(0, since)
		conflict.stack.Status.LastUpdate.Conflicts = 9
		for what, o := range map[string]*observation{
			"after failures": failed(9, since), "after interruptions": interrupted(9, since), "after a conflict": conflict,
			"settled with resyncs": resynced, "deleted": deleted,
		} {
			t.Run(what+", "+name, func(t *testing.T) {
				NewWithT(t).Expect(decide(*o).action).To(Equal(actionUpdate))
			})
		}
	}
}

func TestAnUpdateThatEndedByAnAgentsClockAheadEndedNow(t *testing.T) {
	g := NewWithT(t)
	for since, want := range map[time.Duration]time.Time{-time.Hour: now, 0: now, time.Hour: now.Add(-time.Hour)} {
		end := ago(since)
		update := &autov1alpha1.Update{Status: autov1alpha1.UpdateStatus{EndTime: &end}}
		g.Expect(endedBy(update, metav1.NewTime(now)).Time).To(Equal(want))
	}
}

func TestAnAttemptThatFailedJustNowIsNotRepeatedAtOnce(t *testing.T) {
	o := failed(1, 0)
	NewWithT(t).Expect(untilDue(o.stack, retryDue(o.stack, 0), now)).To(Equal(firstBackoff))
	NewWithT(t).Expect(untilDue(&pulumiv1.Stack{}, now.Add(time.Second), now)).To(Equal(time.Second))
}
