package stack

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/backoff"
)

// firstOutputsWait is the time from an attempt to write outputs to the next one, if nothing wakes the Stack before. It grows with the time for
// which the problem has been shown.
const firstOutputsWait = 5 * time.Second

// outputObjects is what is known of the objects of spec.outputs.
type outputObjects struct {
	// source is the Update that set the outputs; nil when there is none.
	source *outputsSource
	// edited has those that are gone, or are not as they were written.
	edited []pulumiv1.WrittenOutputObject
	// tried is true when they were written in this reconcile, as far as there is no problem.
	tried   bool
	problem *outputProblem
	// lost is true when the outputs are needed and no longer stored.
	lost bool
	// values is the Secret with the outputs, if it was read already.
	values *corev1.Secret
}

// outputsSource is an Update that has outputs.
type outputsSource struct {
	name string
	uid  types.UID
	// secret is the name of the Secret with them; empty when the stack has none.
	secret string
}

func sourceOfOutputs(update *autov1alpha1.Update) *outputsSource {
	return &outputsSource{name: update.Name, uid: update.UID, secret: update.Status.Outputs}
}

// latestOutputs returns the Update that succeeded last in setting outputs, of those that are sorted by age: the last update of the Stack, or
// else the one whose outputs were written, or else the youngest. Several may have been created in the same second.
func latestOutputs(stack *pulumiv1.Stack, updates []autov1alpha1.Update) (found *outputsSource) {
	last, written := stack.Status.LastUpdate, stack.Status.OutputObjects
	for i := range slices.Backward(updates) {
		update := &updates[i]
		if !givesOutputs(update) || !update.DeletionTimestamp.IsZero() || !isRecorded(stack, update) {
			continue
		}
		if last != nil && last.Name == update.Name {
			return sourceOfOutputs(update)
		}
		if found == nil || written != nil && written.UID == update.UID {
			found = sourceOfOutputs(update)
		}
	}
	return found
}

// outputsDigest identifies what spec.outputs asks for.
func outputsDigest(stack *pulumiv1.Stack) string {
	content, err := json.Marshal(stack.Spec.Outputs)
	if err != nil {
		return "" // this cannot happen: it was decoded from JSON
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8])
}

// outputsAreWritten reports whether the objects are what spec.outputs asks for.
func outputsAreWritten(o observation) bool {
	written := o.stack.Status.OutputObjects
	if len(o.stack.Spec.Outputs) == 0 {
		return written == nil
	}
	return written != nil && written.SpecDigest == outputsDigest(o.stack) && len(o.outputs.edited) == 0 &&
		(o.outputs.source == nil || written.UID == o.outputs.source.uid)
}

// writesOutputs reports whether the objects of spec.outputs have to be written now. They are after each update that succeeded, after an edit,
// and when somebody has changed them; neither while the Stack is suspended nor when it is being deleted.
func writesOutputs(o observation) bool {
	switch {
	case o.outputs.tried, o.specProblem != nil, o.otherShard != nil, o.stack.Spec.Suspend, !o.stack.DeletionTimestamp.IsZero():
		return false
	case o.update != nil && o.update.IsComplete():
		return false // its result comes first
	}
	return !outputsAreWritten(o) && (o.outputs.source != nil || len(o.stack.Spec.Outputs) == 0)
}

// needsOutputs reports whether an update has to run because the outputs that are to be written are stored nowhere: the Updates that had them
// are gone.
func needsOutputs(o observation) bool {
	last := o.stack.Status.LastUpdate
	return !o.stack.Spec.Preview && len(o.stack.Spec.Outputs) > 0 && last != nil && last.State == pulumiv1.StackUpdateSucceeded &&
		(o.outputs.lost || o.outputs.source == nil && !outputsAreWritten(o))
}

// showOutputProblem returns the decision with the problem of the outputs, for a Stack that would be ready without it.
func showOutputProblem(o observation, d decision) decision {
	problem := o.outputs.problem
	staysReady := d.action == actionReady || d.quiet && (d.action == actionWait || d.action == actionAwaitApproval)
	if problem == nil || !staysReady {
		return d
	}
	waited := time.Duration(0)
	if shown := conditions.Get(o.stack, meta.ReadyCondition); shown != nil && shown.Reason == problem.reason {
		waited = o.now.Sub(shown.LastTransitionTime.Time)
	}
	after := backoff.Proportional(waited, firstOutputsWait, max(o.waitInterval, firstOutputsWait))
	shown := decision{action: actionStall, wake: byTime, reason: problem.reason, message: problem.message, after: soonest(d.after, after)}
	if problem.passes {
		shown.action = actionWait
	}
	return shown
}

// writtenObject returns what the status says about the object; nil when it was not written.
func writtenObject(written *pulumiv1.OutputObjectsStatus, kind pulumiv1.OutputObjectKind, name string) *pulumiv1.WrittenOutputObject {
	if written == nil {
		return nil
	}
	kind = cmp.Or(kind, pulumiv1.OutputSecret)
	for i := range written.Objects {
		if object := &written.Objects[i]; object.Kind == kind && object.Name == name {
			return object
		}
	}
	return nil
}
