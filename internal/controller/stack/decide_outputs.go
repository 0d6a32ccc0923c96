package stack

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

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
	// used is true when other Stacks have them as inputs, and awaited when one of these waits for an input, as far as this controller sees: others
	// ask for an update, see observeGivers. source is the Update that set the outputs; nil when there is none, and not looked for when they are
	// neither used nor written.
	used, awaited bool
	source        *pulumiv1.StoredOutputs
	// edited has those that are gone, or are not as they were written, and intact those that are. Of an object that is not watched, neither is
	// known.
	edited, intact []pulumiv1.WrittenOutputObject
	// tried is true when they were written in this reconcile, as far as there is no problem.
	tried   bool
	problem *outputProblem
	// lost is true when the outputs are needed and no longer stored: the Secret that source names is gone.
	lost bool
	// values is the Secret with the outputs, if it was read already.
	values *corev1.Secret
}

// sourceOfOutputs returns where the outputs of an Update are.
func sourceOfOutputs(update *autov1alpha1.Update) *pulumiv1.StoredOutputs {
	return &pulumiv1.StoredOutputs{Update: update.Name, UID: update.UID, Secret: update.Status.Outputs}
}

// latestOutputs returns where the outputs of the last update are that succeeded in setting some; nil when its Update is gone. updates are
// sorted by age. If the status does not say which Update that is, it is the last update of the Stack, or else the youngest: several may have
// been created in the same second.
func latestOutputs(stack *pulumiv1.Stack, updates []autov1alpha1.Update) (found *pulumiv1.StoredOutputs) {
	last, stored := stack.Status.LastUpdate, stack.Status.StoredOutputs
	for i := range slices.Backward(updates) {
		update := &updates[i]
		isLast := last != nil && last.Name == update.Name
		switch {
		case !givesOutputs(update) || !update.DeletionTimestamp.IsZero() || !isRecorded(stack, update):
		case stored != nil && stored.UID == update.UID:
			return stored
		case stored == nil && (found == nil || isLast):
			found = sourceOfOutputs(update)
		}
	}
	return found
}

// followOutputs records where the outputs are, if an earlier version of this controller has not.
func followOutputs(o *observation) {
	if o.stack.Status.StoredOutputs == nil {
		o.stack.Status.StoredOutputs = o.outputs.source
	}
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
		(o.outputs.source == nil || written.UID == o.outputs.source.UID)
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

// needsOutputs reports whether an update has to run because outputs that are to be written, or that other Stacks have as inputs, are stored
// nowhere: the Updates that had them, or their Secrets, are gone. It returns false after an update whose outputs could not be stored: only a
// human can tell when those of another one can.
func needsOutputs(o observation) bool {
	last := o.stack.Status.LastUpdate
	if o.stack.IsPreview() || notStored(o.stack) != nil || last == nil || last.State != pulumiv1.StackUpdateSucceeded {
		return false
	}
	lost := o.outputs.lost || o.stack.Status.OutputsNotStored != ""
	writes := len(o.stack.Spec.Outputs) > 0 && (lost || o.outputs.source == nil && !outputsAreWritten(o))
	return writes || o.outputs.used && (lost || o.outputs.source == nil)
}

// notStored returns the problem that the outputs of the last update could not be stored; nil when they could, or when the Update was deleted
// before that was tried.
func notStored(stack *pulumiv1.Stack) *outputProblem {
	why := stack.Status.OutputsNotStored
	if why == "" || why == autov1alpha1.UpdateWasDeleted {
		return nil
	}
	return &outputProblem{reason: pulumiv1.OutputsNotWrittenReason, message: "the outputs of the last update are not stored, and those of an earlier " +
		"one stay: " + why + ". When Secrets can be created again, request an update"}
}

// showOutputProblem returns the decision with the problem of the outputs, for a Stack that would be ready without it.
func showOutputProblem(o observation, d decision) decision {
	problem := cmp.Or(o.outputs.problem, notStored(o.stack))
	staysReady := d.action == actionReady || d.quiet && (d.action == actionWait || d.action == actionAwaitApproval || d.action == actionHold)
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
