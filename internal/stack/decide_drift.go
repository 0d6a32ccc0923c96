package stack

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/backoff"
	"github.com/stack-controller/stack-controller/internal/urn"
)

// Drift is what was changed or removed outside of Pulumi. A Stack looks for it only while it has nothing else to do, with an Update that
// changes nothing and that goes when there is something to do. It is reported when two checks in a row see the same.

const (
	// confirmDelay is the time from a check that sees new drift to the one that confirms it: resources may be about to change, and a
	// provider may not see its own changes at once.
	confirmDelay = 10 * time.Second
	// checkStartTimeout is how long a check may wait to be started, and checkWorkspaceTimeout how long one may wait for a Workspace that is not there.
	checkStartTimeout     = 15 * time.Minute
	checkWorkspaceTimeout = 10 * time.Second
	// firstDriftBackoff is the wait after a check that failed. Each further one doubles it, up to the interval.
	firstDriftBackoff  = time.Minute
	driftBackoffFactor = 2
	// maxCorrections is how many updates correct the same drift within correctionPeriod. Somebody else wants something else then.
	maxCorrections   = 3
	correctionPeriod = time.Hour
	// maxDriftedResources bounds what the status lists, and maxDriftedSize its URNs and paths together, in bytes.
	maxDriftedResources = 50
	maxDriftedSize      = 16 << 10
	// maxListedPaths is how many paths an Update lists of one resource.
	maxListedPaths = 20
)

// driftStep is what one reconcile does about drift, beside its action.
type driftStep string

const (
	// driftNone does nothing: no check is due, or one is on its way.
	driftNone driftStep = "none"
	// driftStart starts a check.
	driftStart driftStep = "check"
	// driftRecord takes the result of a check into the status.
	driftRecord driftStep = "record"
	// driftDiscard removes a check whose result does not count.
	driftDiscard driftStep = "discard"
)

// driftDecision is what decideOnDrift chose.
type driftDecision struct {
	step driftStep
	// after is when the next check is due; zero leaves it to a watch.
	after time.Duration
	// begin says that the time of the first check is to be set.
	begin bool
	// forget says that the Stack does not look for drift any more, so that its status says nothing about it.
	forget bool
}

// decideOnDrift chooses what happens about drift, beside the action that was decided on.
func decideOnDrift(o observation, d decision) driftDecision {
	spec, check := o.stack.Spec.Drift, o.driftCheck
	switch {
	case o.otherShard != nil:
		return driftDecision{step: driftNone}
	case spec == nil && check == nil:
		return driftDecision{step: driftNone, forget: true}
	case spec == nil, !o.stack.DeletionTimestamp.IsZero(), o.stack.Spec.Suspend, o.update != nil, d.action == actionUpdate:
		return driftDecision{step: discardIf(check), forget: spec == nil}
	case check != nil && !check.DeletionTimestamp.IsZero():
		// Its end wakes the Stack.
		return driftDecision{step: driftNone}
	case check != nil && isOutdatedCheck(o.stack, check):
		return driftDecision{step: driftDiscard}
	case check != nil && (check.IsComplete() || startTimedOut(check, o.now)):
		return driftDecision{step: driftRecord}
	case check != nil && o.workspace == nil && !check.HasStarted() && o.now.Sub(check.CreationTimestamp.Time) > checkWorkspaceTimeout:
		// Somebody deleted the Workspace. The next check makes another one.
		return driftDecision{step: driftDiscard}
	case check != nil:
		return driftDecision{step: driftNone, after: o.waitInterval}
	case d.action != actionReady && (d.action != actionAwaitApproval || d.cause != pulumiv1.PlanForDrift), !canDrift(o.stack):
		return driftDecision{step: driftNone}
	}
	if o.stack.Status.Drift == nil && !driftCheckRequested(o.stack) {
		return driftDecision{step: driftNone, begin: true, after: firstCheckAfter(o.stack)}
	}
	if left := driftDue(o.stack, o.jitter).Sub(o.now); left > 0 {
		return driftDecision{step: driftNone, after: left}
	}
	return driftDecision{step: driftStart}
}

// startTimedOut reports whether the check was not started for too long.
func startTimedOut(check *autov1alpha1.Update, now time.Time) bool {
	return !check.HasStarted() && now.Sub(check.CreationTimestamp.Time) > checkStartTimeout
}

func discardIf(check *autov1alpha1.Update) driftStep {
	if check == nil || !check.DeletionTimestamp.IsZero() {
		return driftNone
	}
	return driftDiscard
}

// canDrift reports whether there is a known state with which resources can be compared.
func canDrift(stack *pulumiv1.Stack) bool {
	last := stack.Status.LastUpdate
	return stack.Status.Deployed && stack.Status.ProjectInfo != nil && last != nil && last.State == pulumiv1.StackUpdateSucceeded && !last.PendingOperations
}

// isOutdatedCheck reports whether the check says nothing about what the Stack is now: an update has ended since it began, somebody cancelled it,
// or its result is in the status already.
func isOutdatedCheck(stack *pulumiv1.Stack, check *autov1alpha1.Update) bool {
	last, drift := stack.Status.LastUpdate, stack.Status.Drift
	recorded := check.IsComplete() && drift != nil && drift.LastCheckTime != nil && drift.LastCheckTime.Time.Equal(endOf(check).Time)
	cancelled := conditions.GetReason(check, autov1alpha1.UpdateFailed) == autov1alpha1.CanceledReason
	return last == nil || last.Name != check.Annotations[pulumiv1.DriftUpdateAnnotation] || recorded || cancelled
}

// firstCheckAfter is the time until the first check: anywhere in the first interval, so that Stacks which were created together are looked at one
// after the other.
func firstCheckAfter(stack *pulumiv1.Stack) time.Duration {
	return time.Duration(spreadOf(string(stack.UID)) * float64(driftInterval(stack)))
}

// driftDue is when the next check is due.
func driftDue(stack *pulumiv1.Stack, jitter float64) time.Time {
	drift, interval := stack.Status.Drift, driftInterval(stack)
	switch {
	case driftCheckRequested(stack):
		return time.Time{}
	case drift.LastCheckTime == nil && drift.FirstCheckTime == nil:
		return time.Time{}
	case drift.LastCheckTime == nil:
		return drift.FirstCheckTime.Time
	case drift.Failures > 0:
		return drift.LastCheckTime.Add(backoff.Exponential(firstDriftBackoff, driftBackoffFactor, drift.Failures, interval))
	case drift.Unconfirmed != "":
		return drift.LastCheckTime.Add(confirmDelay)
	case drift.Digest != "" && drift.CheckedUpdate != stack.Status.LastUpdate.Name:
		// The update may have corrected it.
		return time.Time{}
	}
	return drift.LastCheckTime.Add(time.Duration(float64(interval) * (1 + jitter*spreadOf(string(stack.UID)))))
}

func driftInterval(stack *pulumiv1.Stack) time.Duration {
	return cmp.Or(stack.Spec.Drift.Interval.Duration, pulumiv1.DefaultDriftInterval)
}

// driftCheckRequested reports whether an annotation asks for a check that was not made yet.
func driftCheckRequested(stack *pulumiv1.Stack) bool {
	requested, handled := stack.Annotations[pulumiv1.DriftCheckAnnotation], ""
	if stack.Status.Drift != nil {
		handled = stack.Status.Drift.LastHandledCheckAt
	}
	return requested != "" && requested != handled
}

// correctsDrift reports whether drift that was reported is to be corrected by an update now. The check has to be newer than the last update.
func correctsDrift(o observation) bool {
	spec, drift := o.stack.Spec.Drift, o.stack.Status.Drift
	return spec != nil && spec.Mode == pulumiv1.DriftModeCorrect && drift != nil && drift.Digest != "" && drift.Unconfirmed == "" &&
		drift.CheckedUpdate == o.stack.Status.LastUpdate.Name && canDrift(o.stack) && !o.stack.Spec.Preview && !comesBack(drift)
}

// comesBack reports whether the drift was corrected so often that it is left alone: until it is another one, or somebody asks for a check.
func comesBack(drift *pulumiv1.DriftStatus) bool {
	correction := drift.Correction
	return correction != nil && correction.Digest == drift.Digest && correction.Count >= maxCorrections
}

// countCorrection returns the record of corrections with one more.
func countCorrection(drift *pulumiv1.DriftStatus, digest string, now time.Time) *pulumiv1.DriftCorrection {
	if before := drift.Correction; before != nil && before.Digest == digest && now.Sub(before.Since.Time) < correctionPeriod {
		return &pulumiv1.DriftCorrection{Digest: digest, Count: before.Count + 1, Since: before.Since}
	}
	return &pulumiv1.DriftCorrection{Digest: digest, Count: 1, Since: metav1.NewTime(now).Rfc3339Copy()}
}

// driftOf returns what a check found that is not ignored, in the order of the URNs, with what identifies it. omitted is how many changes are
// not listed.
func driftOf(check *autov1alpha1.Update, ignore []pulumiv1.DriftIgnore) (resources []pulumiv1.DriftedResource, omitted int64, digest string) {
	rules := make([]ignoreRule, len(ignore))
	for i := range ignore {
		rules[i] = newIgnoreRule(&ignore[i])
	}
	for i := range check.Status.Changes {
		change := &check.Status.Changes[i]
		drifted := pulumiv1.DriftedResource{URN: change.URN, Change: pulumiv1.DriftChanged, Paths: change.Paths}
		if change.Operation == "delete" {
			drifted.Change, drifted.Paths = pulumiv1.DriftGone, nil
		}
		ignored := slices.ContainsFunc(rules, func(rule ignoreRule) bool { return !rule.counts(&drifted) })
		if !ignored {
			resources = append(resources, drifted)
		}
	}
	slices.SortFunc(resources, func(a, b pulumiv1.DriftedResource) int { return cmp.Compare(a.URN, b.URN) })
	omitted = check.Status.OmittedChanges
	if len(resources) == 0 && omitted == 0 {
		return nil, 0, ""
	}
	// What was decoded can be encoded.
	content, _ := json.Marshal([]any{resources, omitted})
	sum := sha256.Sum256(content)
	digest = "sha256:" + hex.EncodeToString(sum[:])
	listed := listable(resources)
	return resources[:listed], omitted + int64(len(resources)-listed), digest
}

// listable is how many of the resources the status has room for.
func listable(resources []pulumiv1.DriftedResource) int {
	size := 0
	for i, drifted := range resources {
		size += len(drifted.URN) + len(strings.Join(drifted.Paths, ""))
		if i == maxDriftedResources || size > maxDriftedSize {
			return i
		}
	}
	return len(resources)
}

// ignoreRule is an entry of spec.drift.ignore.
type ignoreRule struct {
	target pulumiv1.DriftTarget
	paths  []string
}

func newIgnoreRule(ignore *pulumiv1.DriftIgnore) ignoreRule {
	return ignoreRule{target: ptr.Deref(ignore.Target, pulumiv1.DriftTarget{}), paths: ignore.Paths}
}

// matches reports whether the whole text matches the pattern, in which * stands for any text; an empty pattern matches all. It goes through the
// text once, however many * there are: tenants choose both. (doublestar and path.Match let no * stand for a slash, which types have.)
func matches(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	if pattern == "" || len(parts) == 1 {
		return pattern == "" || pattern == text
	}
	rest, found := strings.CutPrefix(text, parts[0])
	for _, part := range parts[1 : len(parts)-1] {
		if found {
			_, rest, found = strings.Cut(rest, part)
		}
	}
	return found && strings.HasSuffix(rest, parts[len(parts)-1])
}

// counts takes the paths that are ignored out of the resource, and reports whether there is any drift left. Of one with more paths than are
// listed, not all is known.
func (r ignoreRule) counts(drifted *pulumiv1.DriftedResource) bool {
	switch {
	case !matches(r.target.Type, urn.Type(drifted.URN)), !matches(r.target.Name, urn.Name(drifted.URN)):
		return true
	case len(r.paths) == 0:
		return false
	case len(drifted.Paths) == 0:
		return true
	}
	listed := len(drifted.Paths)
	drifted.Paths = slices.DeleteFunc(slices.Clone(drifted.Paths), func(path string) bool {
		return slices.ContainsFunc(r.paths, func(ignored string) bool { return isBelow(path, ignored) })
	})
	return len(drifted.Paths) > 0 || listed >= maxListedPaths
}

// isBelow reports whether the path is the other one, or leads to a part of it.
func isBelow(path, other string) bool {
	rest, below := strings.CutPrefix(path, other)
	return below && (rest == "" || rest[0] == '.' || rest[0] == '[')
}
