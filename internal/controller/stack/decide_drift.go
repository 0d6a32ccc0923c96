package stack

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/backoff"
	"github.com/stack-controller/stack-controller/internal/urn"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// Drift is what was changed or removed outside of Pulumi. The controller looks for the drift of a Stack only while the Stack has nothing
// else to do, with an Update that changes nothing and that is deleted as soon as there is something to do. Drift is reported when two
// checks in a row find the same.

const (
	// confirmDelay is the time from a check that sees new drift to the one that confirms it: resources may be about to change, and a
	// provider may not see its own changes at once.
	confirmDelay = 10 * time.Second
	// checkStartTimeout is how long a check may wait to be started, and checkWorkspaceTimeout how long it may wait for a Workspace that does
	// not exist.
	checkStartTimeout     = 15 * time.Minute
	checkWorkspaceTimeout = 10 * time.Second
	// firstDriftBackoff is the wait after a check that failed. Each further one doubles it, up to the interval.
	firstDriftBackoff  = time.Minute
	driftBackoffFactor = 2
	// maxCorrections is how many updates correct the same drift within correctionPeriod. Drift that still comes back is caused by something
	// else that changes the same resources.
	maxCorrections   = 3
	correctionPeriod = time.Hour
	// maxTotalCorrections is how many updates correct any drift within correctionPeriod. A set of resources of which now these and now those drift
	// is never the same drift three times. Of more than 50 resources, each correction has 50.
	maxTotalCorrections = 20
	// maxUnconfirmed is how many checks in a row may find drift that the one before did not find. Such drift does not settle, so it is reported.
	maxUnconfirmed = 2
	// maxDriftedResources bounds what the status lists, and maxDriftedSize its URNs and paths together, in bytes.
	maxDriftedResources = 50
	maxDriftedSize      = 16 << 10
	// maxListedPaths is how many paths an Update lists of one resource.
	maxListedPaths = 20
)

// driftStep is what one reconcile does about drift, besides its action.
type driftStep string

const (
	// driftNone does nothing: no check is due, or one is in progress.
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
	// forget says that the Stack no longer looks for drift, so that its status says nothing about it.
	forget bool
}

// driftSpec returns how the Stack looks for drift; nil if it does not. Without spec.drift it does so while it has a turn in a wave that asks for it.
func driftSpec(o observation) *pulumiv1.DriftSpec {
	if o.stack.Spec.Drift == nil && waves.ChecksDrift(o.stack, o.rollout) {
		return &pulumiv1.DriftSpec{}
	}
	return o.stack.Spec.Drift
}

// waitsForCheck reports whether the turn of the Stack lasts until it has looked for drift, and it has not since its last update.
func waitsForCheck(o observation) bool {
	return waves.ChecksDrift(o.stack, o.rollout) && !checkedSinceUpdate(o.stack)
}

func checkedSinceUpdate(stack *pulumiv1.Stack) bool {
	drift, last := stack.Status.Drift, stack.Status.LastUpdate
	return drift != nil && last != nil && drift.LastCheckTime != nil && drift.CheckedUpdate == last.Name
}

// decideOnDrift chooses what to do about drift, besides the action of the decision.
func decideOnDrift(o observation, d decision) driftDecision {
	spec, check := driftSpec(o), o.driftCheck
	// The StackRollout reads what a check has found until the next update ends.
	forget := spec == nil && (!waves.KeepsDrift(o.rollout) || !checkedSinceUpdate(o.stack))
	switch {
	case o.otherShard != nil:
		return driftDecision{step: driftNone}
	case spec == nil && check == nil:
		return driftDecision{step: driftNone, forget: forget}
	case spec == nil, !o.stack.DeletionTimestamp.IsZero(), o.stack.Spec.Suspend, o.update != nil, d.action == actionUpdate:
		return driftDecision{step: discardIf(check), forget: forget}
	case check != nil && !check.DeletionTimestamp.IsZero():
		// The end of its deletion wakes the Stack.
		return driftDecision{step: driftNone}
	case check != nil && isOutdatedCheck(o.stack, check, o.now):
		return driftDecision{step: driftDiscard}
	case check != nil && (check.IsComplete() || startTimedOut(check, o.now)):
		return driftDecision{step: driftRecord}
	case check != nil && o.workspace == nil && !check.HasStarted() && o.now.Sub(check.CreationTimestamp.Time) > checkWorkspaceTimeout:
		// Somebody deleted the Workspace. The next check creates another one.
		return driftDecision{step: driftDiscard}
	case check != nil:
		return driftDecision{step: driftNone, after: o.waitInterval}
	case d.action != actionReady && (d.action != actionAwaitApproval || d.cause != pulumiv1.PlanForDrift) && (d.action != actionHold || !d.quiet),
		!canDrift(o.stack):
		return driftDecision{step: driftNone}
	}
	if waitsForCheck(o) {
		return driftDecision{step: driftStart}
	}
	if setsFirstCheck(o.stack.Status.Drift, spec, o.now) && !driftCheckRequested(o.stack) {
		return driftDecision{step: driftNone, begin: true, after: firstCheckAfter(o.stack, spec)}
	}
	if left := driftDue(o.stack, spec, o.jitter, o.now).Sub(o.now); left > 0 {
		return driftDecision{step: driftNone, after: left}
	}
	return driftDecision{step: driftStart}
}

// startTimedOut reports whether the check was not started within checkStartTimeout.
func startTimedOut(check *autov1alpha1.Update, now time.Time) bool {
	return !check.HasStarted() && now.Sub(check.CreationTimestamp.Time) >= checkStartTimeout
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

// isOutdatedCheck reports whether the result of the check does not count: an update has ended since the check began, the check is not one for
// the Stack as it is now, somebody cancelled it, or its result is in the status already.
func isOutdatedCheck(stack *pulumiv1.Stack, check *autov1alpha1.Update, now time.Time) bool {
	last, drift := stack.Status.LastUpdate, stack.Status.Drift
	// Times have seconds, in which another update and its check may have ended.
	recorded := drift != nil && drift.LastCheckTime != nil && drift.CheckedUpdate == check.Annotations[pulumiv1.DriftUpdateAnnotation] &&
		(check.IsComplete() && check.Status.EndTime.Equal(drift.LastCheckTime) ||
			!check.IsComplete() && startTimedOut(check, drift.LastCheckTime.Time) && startTimedOut(check, now))
	cancelled := conditions.GetReason(check, autov1alpha1.UpdateFailed) == autov1alpha1.CanceledReason
	return last == nil || last.Name != check.Annotations[pulumiv1.DriftUpdateAnnotation] || !onlyChecksDrift(stack, check) ||
		recorded || cancelled
}

// setsFirstCheck reports whether the time of the first check is to be set. One that is further away than the interval was set for a longer
// interval, or by a clock that was wrong.
func setsFirstCheck(drift *pulumiv1.DriftStatus, spec *pulumiv1.DriftSpec, now time.Time) bool {
	return drift == nil || drift.FirstCheckTime != nil && drift.FirstCheckTime.Sub(now) > driftInterval(spec)
}

// firstCheckAfter returns the time until the first check. It lies anywhere within the first interval, so that Stacks that were created
// together are not all checked at once.
func firstCheckAfter(stack *pulumiv1.Stack, spec *pulumiv1.DriftSpec) time.Duration {
	return time.Duration(spreadOf(string(stack.UID)) * float64(driftInterval(spec)))
}

// driftDue is when the next check is due. If the last one ended in the future, a clock was wrong: waiting could take years, and the next check
// corrects the time.
func driftDue(stack *pulumiv1.Stack, spec *pulumiv1.DriftSpec, jitter float64, now time.Time) time.Time {
	drift, interval := stack.Status.Drift, driftInterval(spec)
	switch {
	case driftCheckRequested(stack):
		return time.Time{}
	case drift.LastCheckTime == nil && drift.FirstCheckTime == nil:
		return time.Time{}
	case drift.LastCheckTime == nil:
		return drift.FirstCheckTime.Time
	case drift.LastCheckTime.After(now):
		return time.Time{}
	case drift.Failures > 0:
		return drift.LastCheckTime.Add(backoff.Exponential(firstDriftBackoff, driftBackoffFactor, drift.Failures, interval))
	case drift.Unconfirmed != "":
		return drift.LastCheckTime.Add(confirmDelay)
	case drift.Digest != "" && drift.CheckedUpdate != stack.Status.LastUpdate.Name, ignoresReported(spec, drift):
		// An update ended after the check, and may have corrected the drift. Or an edit of the rules makes some of it count no longer.
		return time.Time{}
	}
	return drift.LastCheckTime.Add(time.Duration(float64(interval) * (1 + jitter*spreadOf(string(stack.UID)))))
}

func driftInterval(spec *pulumiv1.DriftSpec) time.Duration {
	return cmp.Or(spec.Interval.Duration, pulumiv1.DefaultDriftInterval)
}

// driftCheckRequested reports whether an annotation asks for a check that was not made yet.
func driftCheckRequested(stack *pulumiv1.Stack) bool {
	requested, handled := stack.Annotations[pulumiv1.DriftCheckAnnotation], ""
	if stack.Status.Drift != nil {
		handled = stack.Status.Drift.LastHandledCheckAt
	}
	return requested != "" && requested != handled
}

// correctsDrift reports whether an update has to correct the reported drift now. The check has to be newer than the last update.
func correctsDrift(o observation) bool {
	drift := o.stack.Status.Drift
	return drift != nil && drift.Unconfirmed == "" && canDrift(o.stack) && drift.CheckedUpdate == o.stack.Status.LastUpdate.Name &&
		isCorrectable(o.stack) && !comesBack(drift)
}

// isCorrectable reports whether the Stack asks for a correction of the reported drift. An update corrects only what the status lists, because
// it must not touch what is ignored.
func isCorrectable(stack *pulumiv1.Stack) bool {
	spec, drift := stack.Spec.Drift, stack.Status.Drift
	return spec != nil && spec.Mode == pulumiv1.DriftModeCorrect && !stack.IsPreview() && len(correctable(drift.Resources)) > 0 && !ignoresReported(spec, drift)
}

// correctable returns the URNs of the resources that an update can be limited to. Pulumi takes a target with an asterisk for a pattern, which may
// match others.
func correctable(resources []pulumiv1.DriftedResource) (urns []string) {
	for i := range resources {
		if !strings.Contains(resources[i].URN, "*") {
			urns = append(urns, resources[i].URN)
		}
	}
	return urns
}

// ignoresReported reports whether the rules of the spec are newer than the check, and ignore something that it reported.
func ignoresReported(spec *pulumiv1.DriftSpec, drift *pulumiv1.DriftStatus) bool {
	return !equality.Semantic.DeepEqual(withoutIgnored(drift.Resources, spec.Ignore), drift.Resources)
}

// retriesCorrection reports whether the last update failed to correct drift that is still to be corrected. Nobody looks for drift meanwhile.
func retriesCorrection(o observation) bool {
	drift, last := o.stack.Status.Drift, o.stack.Status.LastUpdate
	return drift != nil && last != nil && last.State == pulumiv1.StackUpdateFailed && last.Drift != "" && last.Drift == drift.Digest &&
		isCorrectable(o.stack)
}

// comesBack reports whether the drift was corrected so often that it is left alone, until it changes or somebody requests a check. Drift that
// appeared only later, after a check that found none, is a new case.
func comesBack(drift *pulumiv1.DriftStatus) bool {
	correction := drift.Correction
	if correction == nil || drift.Since == nil {
		return false
	}
	isSame := correction.Digest == drift.Digest && correction.Count >= maxCorrections && drift.Since.Sub(correction.Since.Time) < correctionPeriod
	return isSame || correction.Total >= maxTotalCorrections && correction.TotalSince != nil && drift.Since.Sub(correction.TotalSince.Time) < correctionPeriod
}

// countCorrection returns the record of corrections with one more correction of the drift.
func countCorrection(drift *pulumiv1.DriftStatus, digest string, now time.Time) *pulumiv1.DriftCorrection {
	at := metav1.NewTime(now).Rfc3339Copy()
	next := &pulumiv1.DriftCorrection{Digest: digest, Count: 1, Since: at, Total: 1, TotalSince: &at}
	before := drift.Correction
	if before == nil {
		return next
	}
	if before.Digest == digest && now.Sub(before.Since.Time) < correctionPeriod {
		next.Count, next.Since = before.Count+1, before.Since
	}
	if before.TotalSince != nil && now.Sub(before.TotalSince.Time) < correctionPeriod {
		next.Total, next.TotalSince = before.Total+1, before.TotalSince
	}
	return next
}

// driftOf returns the drifted resources that a check found and that are not ignored, sorted by URN, and a digest that identifies them.
// omitted is how many changes are not listed.
func driftOf(check *autov1alpha1.Update, ignore []pulumiv1.DriftIgnore) (resources []pulumiv1.DriftedResource, omitted int64, digest string) {
	for i := range check.Status.Changes {
		change := &check.Status.Changes[i]
		drifted := pulumiv1.DriftedResource{URN: change.URN, Change: pulumiv1.DriftChanged, Paths: change.Paths}
		if change.Operation == "delete" {
			drifted.Change, drifted.Paths = pulumiv1.DriftGone, nil
		}
		resources = append(resources, drifted)
	}
	resources = withoutIgnored(resources, ignore)
	slices.SortFunc(resources, func(a, b pulumiv1.DriftedResource) int { return cmp.Compare(a.URN, b.URN) })
	omitted = check.Status.OmittedChanges
	if len(resources) == 0 && omitted == 0 {
		return nil, 0, ""
	}
	// This cannot fail: the values were decoded from JSON.
	content, _ := json.Marshal([]any{resources, omitted})
	sum := sha256.Sum256(content)
	digest = "sha256:" + hex.EncodeToString(sum[:])
	listed := listable(resources)
	return resources[:listed], omitted + int64(len(resources)-listed), digest
}

// listable returns how many of the resources fit into the status.
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

// withoutIgnored returns what is left of the drift if the rules ignore the rest. A resource with maxListedPaths paths may have more that are not
// listed, so its drift counts unless a rule ignores it as a whole.
func withoutIgnored(resources []pulumiv1.DriftedResource, ignore []pulumiv1.DriftIgnore) (left []pulumiv1.DriftedResource) {
	rules := make([]ignoreRule, len(ignore))
	for i := range ignore {
		rules[i] = newIgnoreRule(&ignore[i])
	}
	for _, drifted := range resources {
		ignored, listed := false, len(drifted.Paths)
		for _, rule := range rules {
			if rule.selects(drifted.URN) {
				ignored = ignored || len(rule.paths) == 0
				drifted.Paths = rule.without(drifted.Paths)
			}
		}
		if !ignored && (len(drifted.Paths) > 0 || listed == 0 || listed >= maxListedPaths) {
			left = append(left, drifted)
		}
	}
	return left
}

// ignoreRule is an entry of spec.drift.ignore.
type ignoreRule struct {
	target pulumiv1.DriftTarget
	paths  []string
}

func newIgnoreRule(ignore *pulumiv1.DriftIgnore) ignoreRule {
	return ignoreRule{target: ptr.Deref(ignore.Target, pulumiv1.DriftTarget{}), paths: ignore.Paths}
}

// matches reports whether the whole text matches the pattern, in which * stands for any text. An empty pattern matches everything. It reads
// the text once, however many * there are, because tenants choose both. (In doublestar and path.Match, a * does not match a slash, and
// types contain slashes.)
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

// selects reports whether the rule is about the resource.
func (r ignoreRule) selects(resource string) bool {
	return matches(r.target.Type, urn.Type(resource)) && matches(r.target.Name, urn.Name(resource))
}

// without returns the paths that the rule does not ignore.
func (r ignoreRule) without(paths []string) []string {
	return slices.DeleteFunc(slices.Clone(paths), func(path string) bool {
		return slices.ContainsFunc(r.paths, func(ignored string) bool { return isBelow(path, ignored) })
	})
}

// isBelow reports whether the path is the other one, or leads to a part of it.
func isBelow(path, other string) bool {
	rest, below := strings.CutPrefix(path, other)
	return below && (rest == "" || rest[0] == '.' || rest[0] == '[')
}
