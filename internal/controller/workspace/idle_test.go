package workspace

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

func TestWorkspaceIsIdleWhenItHadNothingToDo(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	ended := func(ago time.Duration) *autov1alpha1.Update {
		return &autov1alpha1.Update{Status: autov1alpha1.UpdateStatus{EndTime: &metav1.Time{Time: noon.Add(-ago)}}}
	}
	const timeout = 10 * time.Minute
	for name, test := range map[string]struct {
		status metav1.ConditionStatus
		reason string
		// readyFor is for how long the condition has had its status.
		readyFor time.Duration
		updates  history
		timeout  time.Duration
		left     time.Duration
		mayIdle  bool
	}{
		"ready for long":                        {metav1.ConditionTrue, "Succeeded", time.Hour, history{}, timeout, 0, true},
		"ready for a while":                     {metav1.ConditionTrue, "Succeeded", time.Minute, history{}, timeout, 9 * time.Minute, true},
		"worked a while ago":                    {metav1.ConditionTrue, "Succeeded", time.Hour, history{last: ended(2 * time.Minute)}, timeout, 8 * time.Minute, true},
		"worked long ago":                       {metav1.ConditionTrue, "Succeeded", time.Minute, history{last: ended(time.Hour)}, timeout, 9 * time.Minute, true},
		"is idle":                               {metav1.ConditionTrue, "Idle", time.Second, history{}, timeout, 0, true},
		"is idle, and has something to do":      {metav1.ConditionTrue, "Idle", time.Hour, history{unfinished: true}, timeout, 0, false},
		"is idle, and should not be any longer": {metav1.ConditionTrue, "Idle", time.Hour, history{}, 0, 0, false},
		"has something to do":                   {metav1.ConditionTrue, "Succeeded", time.Hour, history{unfinished: true}, timeout, 0, false},
		"cannot run operations":                 {metav1.ConditionFalse, "ImagePullFailed", time.Hour, history{}, timeout, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			workspace := &autov1alpha1.Workspace{}
			workspace.Status.Conditions = []metav1.Condition{{Type: autov1alpha1.WorkspaceReady, Status: test.status, Reason: test.reason,
				LastTransitionTime: metav1.NewTime(noon.Add(-test.readyFor))}}
			left, mayIdle := idleIn(workspace, test.updates, test.timeout, noon)
			g.Expect(left).To(Equal(test.left))
			g.Expect(mayIdle).To(Equal(test.mayIdle))
		})
	}
	_, mayIdle := idleIn(&autov1alpha1.Workspace{}, history{}, timeout, noon)
	NewWithT(t).Expect(mayIdle).To(BeFalse(), "a new workspace")
}

func TestWorkspaceIsReconciledWhenItIsIdle(t *testing.T) {
	g := NewWithT(t)
	o := observation{agent: running, pulumiVersion: supportedPulumi, idleIn: time.Minute}
	g.Expect(decide(o).after).To(Equal(time.Minute))
	o.agent.RetryAfter = time.Second
	g.Expect(decide(o).after).To(Equal(time.Second))
	o.agent.RetryAfter = time.Hour
	g.Expect(decide(o).after).To(Equal(time.Minute))
}
