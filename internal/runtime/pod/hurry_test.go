package pod

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
)

func TestPodWhoseAgentDidNotHearOfItsEndIsHurried(t *testing.T) {
	// ends is a pod that was deleted that long ago, with the default time to end.
	ends := func(ago time.Duration) func(*observation) {
		return of(deleted(10*time.Minute-ago), func(o *observation) { o.pod.DeletionGracePeriodSeconds = ptr.To[int64](600) })
	}
	short := func(o *observation) { o.pod.DeletionGracePeriodSeconds = ptr.To[int64](hurriedGrace) }
	foreign := func(o *observation) { o.pod.OwnerReferences = nil }
	late := heedTime + time.Second
	for name, tt := range map[string]struct {
		observed func(*observation)
		asked    bool
		action   action
		after    time.Duration
	}{
		"a moment ago":          {ends(time.Second), false, actionNone, heedTime - time.Second},
		"idle":                  {ends(late), true, actionHurry, 10*time.Minute - late + endSlack},
		"busy":                  {of(ends(late), busy), true, actionNone, busyInterval},
		"does not answer":       {of(ends(late), silentFor(time.Second)), true, actionNone, busyInterval},
		"not running":           {of(ends(late), waits("CrashLoopBackOff", "")), false, actionNone, 10*time.Minute - late + endSlack},
		"somebody else's":       {of(ends(late), foreign), false, actionNone, maxInterval},
		"is hurried already":    {of(ends(late), deleted(time.Second), short), false, actionNone, time.Second + endSlack},
		"its time is over":      {ends(10*time.Minute + endSlack + time.Second), true, actionNone, 0},
		"deleted without grace": {deleted(0), false, actionNone, endSlack},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := observed(tt.observed)
			g.Expect(wantsAnswer(o)).To(Equal(tt.asked))
			d := decide(o)
			g.Expect(d.action).To(Equal(tt.action))
			g.Expect(d.status.RetryAfter).To(Equal(tt.after))
			g.Expect(d.status.Ready).To(BeFalse())
		})
	}
}
