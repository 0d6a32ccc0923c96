// Package waves says which revision of its source a Stack with spec.rolloutRef may have, and how far the Stacks of a StackRollout are with
// the revision that is its target. All of its functions are pure: the controllers of Stacks and StackRollouts use them, and so does the
// command line, which therefore says the same.
package waves

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// Verdict is whether a Stack may have what its source offers.
type Verdict struct {
	// Released is true when it may, and PlanOnly when it may only make a plan of it until it has its turn.
	Released, PlanOnly bool
	// Refused is true when it is in no wave, because the StackRollout does not take its source.
	Refused bool
	// Reason and Message say what a Stack waits for that may not. They name no revision, so that another commit does not change them.
	Reason, Message string
}

// Release decides whether the Stack may have what its source offers: a revision, and what the status of a Stack records as its commit. The
// rollout is the one that the Stack names; nil when there is none.
//
// namespaces has the labels of Namespaces, which only some StackRollouts ask for.
//
// A Stack that was released a revision once may always have it again: retries, edits and corrections of drift need no turn. Whether the
// content that the offer has for the Stack is what it has already is for the caller to find out; such a Stack may have the offer, too.
func Release(stack *pulumiv1.Stack, rollout *autov1alpha1.StackRollout, offer autov1alpha1.RolloutRevision, commit string, namespaces Namespaces) Verdict {
	name, named := RolloutOf(stack)
	last := stack.Status.LastUpdate
	switch {
	case !named, stack.IsPreview(), !stack.DeletionTimestamp.IsZero():
		return Verdict{Released: true}
	case last != nil && commit != "" && last.LastAttemptedCommit == commit:
		return Verdict{Released: true}
	}
	if IsReleasedByHand(stack, offer) {
		return Verdict{Released: true}
	}
	admitted := false
	if rollout != nil {
		admitted, _ = Admits(rollout, stack.Namespace, namespaces) // the StackRollout says why that is not known
	}
	if !admitted {
		// In the same words for all, so that nobody learns which StackRollouts other namespaces have.
		return Verdict{Reason: pulumiv1.RolloutNotFoundReason, Message: fmt.Sprintf(
			"new revisions wait: there is no StackRollout %s that admits Stacks of namespace %q", name, stack.Namespace)}
	}
	status, same := &rollout.Status, Same
	if hasSourceOf(stack, rollout) {
		same = SameArtifact
	}
	if first := Beginning(status); last == nil && first != nil && same(*first, offer) {
		return Verdict{Released: true}
	}
	if status.Target != nil && same(status.Target.RolloutRevision, offer) {
		turn := HasTurn(status, stack.Namespace, stack.Name)
		switch {
		case turn && !status.Paused:
			return Verdict{Released: true}
		case turn && stack.Spec.Approval != nil && status.Rejected == "", slices.Contains(status.Plans, Name(stack.Namespace, stack.Name)):
			return Verdict{Released: true, PlanOnly: true}
		}
	}
	if isRefused(status, Name(stack.Namespace, stack.Name)) {
		// What the StackRollout says of it names the source of others.
		return Verdict{Reason: pulumiv1.WaveNotOpenReason, Refused: true, Message: fmt.Sprintf(
			"StackRollout %s gives it no revision: it does not take its source, as .status.refused of the StackRollout says", name)}
	}
	wait := Verdict{Reason: pulumiv1.WaveNotOpenReason, Message: fmt.Sprintf("a new revision waits for its turn in StackRollout %s", name)}
	if last == nil {
		wait.Message = fmt.Sprintf("a new Stack waits for its turn in StackRollout %s; the annotation %s lets it begin with a revision now",
			name, pulumiv1.ReleaseRevisionAnnotation)
	}
	return wait
}

// isRefused reports whether the StackRollout names the Stack as one that it gives nothing.
func isRefused(status *autov1alpha1.StackRolloutStatus, stack string) bool {
	return slices.ContainsFunc(status.Refused, func(refused autov1alpha1.RolloutFailure) bool { return refused.Stack == stack })
}

// IsReleasedByHand reports whether an annotation of the Stack lets it have the revision, whatever waves and windows say.
func IsReleasedByHand(stack *pulumiv1.Stack, offer autov1alpha1.RolloutRevision) bool {
	named := stack.Annotations[pulumiv1.ReleaseRevisionAnnotation]
	return named != "" && Same(autov1alpha1.RolloutRevision{Revision: named}, offer)
}

// Beginning returns the revision that new Stacks begin with, because all others have had it; nil when there is none, or it was rejected since.
func Beginning(status *autov1alpha1.StackRolloutStatus) *autov1alpha1.RolloutRevision {
	if status.Stable == nil || status.Stable.Digest == "" {
		return nil
	}
	return status.Stable
}

// RolloutOf returns the StackRollout that the Stack names, if it names one.
func RolloutOf(stack *pulumiv1.Stack) (types.NamespacedName, bool) {
	ref := stack.Spec.RolloutRef
	if ref == nil {
		return types.NamespacedName{}, false
	}
	return types.NamespacedName{Namespace: cmp.Or(ref.Namespace, stack.Namespace), Name: ref.Name}, true
}

// Namespaces has the labels of Namespaces.
type Namespaces interface {
	// Labels returns the labels of a Namespace, none if there is no such Namespace. The error says why they are not known.
	Labels(namespace string) (map[string]string, error)
}

// Admits reports whether Stacks of the namespace may join the StackRollout. The error says why that is not known, or what is wrong with the
// selector.
func Admits(rollout *autov1alpha1.StackRollout, namespace string, namespaces Namespaces) (bool, error) {
	allowed := rollout.Spec.AllowedNamespaces
	switch {
	case namespace == rollout.Namespace:
		return true, nil
	case allowed == nil:
		return false, nil
	case allowed.From != autov1alpha1.FromSelector:
		return allowed.From == autov1alpha1.FromAll, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(allowed.Selector)
	if err != nil {
		return false, fmt.Errorf("spec.allowedNamespaces.selector: %w", err)
	}
	found, err := namespaces.Labels(namespace)
	return err == nil && selector.Matches(labels.Set(found)), err
}

// ReadsNamespaces reports whether the StackRollout asks for the labels of Namespaces.
func ReadsNamespaces(rollout *autov1alpha1.StackRollout) bool {
	allowed := rollout.Spec.AllowedNamespaces
	return allowed != nil && allowed.From == autov1alpha1.FromSelector || SelectsByNamespace(rollout.Spec.Waves)
}

// SelectsByNamespace reports whether a wave selects Stacks by the labels of their Namespaces.
func SelectsByNamespace(waves []autov1alpha1.RolloutWave) bool {
	return slices.ContainsFunc(waves, func(wave autov1alpha1.RolloutWave) bool { return wave.Namespaces != nil })
}

// Name returns the name of a Stack in the status of a StackRollout.
func Name(namespace, name string) string { return namespace + "/" + name }

// HasTurn reports whether the Stack may be updated to the target now.
func HasTurn(status *autov1alpha1.StackRolloutStatus, namespace, name string) bool {
	return slices.ContainsFunc(status.Turns, func(turn autov1alpha1.RolloutTurn) bool { return turn.Stack == Name(namespace, name) })
}

// Woken returns the Stacks that may have something which they might not have before: they have a turn, may make a plan, or have to look for drift,
// for this target. A turn that was paused before counts, too. And those that the StackRollout refuses, or no longer, which say so.
func Woken(before, after *autov1alpha1.StackRolloutStatus) (stacks []types.NamespacedName) {
	had := map[string]bool{}
	permissions := func(status *autov1alpha1.StackRolloutStatus, visit func(stack, permission string)) {
		if status.Target == nil {
			return
		}
		for _, turn := range status.Turns {
			visit(turn.Stack, fmt.Sprintf("%s %t %t", turn.Stack, status.Paused, turn.CheckDrift))
		}
		for _, stack := range status.Plans {
			visit(stack, stack)
		}
	}
	if before.Target != nil && after.Target != nil && SameArtifact(before.Target.RolloutRevision, after.Target.RolloutRevision) {
		permissions(before, func(_, permission string) { had[permission] = true })
	}
	wake := func(stack string) {
		namespace, name, _ := strings.Cut(stack, "/")
		stacks = append(stacks, types.NamespacedName{Namespace: namespace, Name: name})
	}
	permissions(after, func(stack, permission string) {
		if !had[permission] {
			wake(stack)
		}
	})
	for _, refused := range slices.Concat(before.Refused, after.Refused) {
		if isRefused(before, refused.Stack) != isRefused(after, refused.Stack) {
			wake(refused.Stack)
		}
	}
	return stacks
}

// ChecksDrift reports whether the turn of the Stack lasts until it has looked for drift, and it is updated to the target, so that it can. The
// rollout is the one that the Stack names; nil when there is none.
func ChecksDrift(stack *pulumiv1.Stack, rollout *autov1alpha1.StackRollout) bool {
	return rollout != nil && ranTarget(stack, rollout, &rollout.Status) && slices.ContainsFunc(rollout.Status.Turns, func(turn autov1alpha1.RolloutTurn) bool {
		return turn.CheckDrift && turn.Stack == Name(stack.Namespace, stack.Name)
	})
}

// ranTarget reports whether the last update of the Stack was one to the target. Of a source that may pack the same commits differently, the names say that:
// also those that the target had before.
func ranTarget(stack *pulumiv1.Stack, rollout *autov1alpha1.StackRollout, status *autov1alpha1.StackRolloutStatus) bool {
	last := stack.Status.LastUpdate
	if status.Target == nil || last == nil {
		return false
	}
	ran, target := autov1alpha1.RolloutRevision{Revision: last.Revision, Digest: last.LastAttemptedCommit}, status.Target.RolloutRevision
	if hasSourceOf(stack, rollout) {
		return SameArtifact(ran, target)
	}
	return Same(ran, target) || IsNameOfTarget(ran.Revision, status)
}

// KeepsDrift reports whether the StackRollout reads what the last check for drift of a Stack without spec.drift has found: a wave has noDrift.
func KeepsDrift(rollout *autov1alpha1.StackRollout) bool {
	return rollout != nil && slices.ContainsFunc(rollout.Spec.Waves, func(wave autov1alpha1.RolloutWave) bool { return wave.NoDrift })
}

// Same reports whether two revisions stand for the same content: their digests are equal, or their checksums are. Two GitRepositories of one
// repository may name its commits differently, and so does the status of a Stack with spec.projectRepo. A name without a checksum, such as v1, may be
// given to other content later.
func Same(a, b autov1alpha1.RolloutRevision) bool {
	if a.Digest != "" && a.Digest == b.Digest {
		return true
	}
	sum, isSum := checksum(a.Revision)
	other, _ := checksum(b.Revision)
	return a.Revision != "" && sum == other && (isSum || a.Digest == "" || b.Digest == "")
}

// IsNameOfTarget reports whether the target has the name, or had it before the same content was published under another one: such names are the
// newest of the earlier targets.
func IsNameOfTarget(name string, status *autov1alpha1.StackRolloutStatus) bool {
	named, target := autov1alpha1.RolloutRevision{Revision: name}, status.Target.RolloutRevision
	if name != "" && name == target.Revision || Same(named, target) { // of 10,000 Stacks, nearly all have exactly this name
		return true
	}
	for _, earlier := range status.Earlier {
		if target.Digest == "" || earlier.Digest != target.Digest {
			return false
		}
		if Same(named, earlier) {
			return true
		}
	}
	return false
}

// SameArtifact is Same for two revisions of one source object. Two artifacts of one revision may have other content, because the source includes
// another one, or because its spec.ignore was edited: so digests decide, where both are known.
func SameArtifact(a, b autov1alpha1.RolloutRevision) bool {
	if IsDigest(a.Digest) && IsDigest(b.Digest) {
		return a.Digest == b.Digest
	}
	return Same(a, b)
}

// IsDigest reports whether what the status of a Stack records as its commit is the digest of an artifact. A git commit is not.
func IsDigest(commit string) bool { return strings.HasPrefix(commit, "sha256:") }

// hasSourceOf reports whether the source of the Stack is the object in spec.sourceRef of the StackRollout, and not another one of the same
// repository.
func hasSourceOf(stack *pulumiv1.Stack, rollout *autov1alpha1.StackRollout) bool {
	ref := rollout.Spec.SourceRef
	if program := stack.Spec.ProgramRef; program != nil {
		return ref.Kind == pulumiv1.ProgramKind && program.Name == ref.Name && stack.Namespace == rollout.Namespace
	}
	flux := stack.Spec.FluxSource
	return flux != nil && flux.SourceRef.Kind == ref.Kind && flux.SourceRef.Name == ref.Name &&
		cmp.Or(flux.SourceRef.Namespace, stack.Namespace) == rollout.Namespace
}

// IsWhole reports whether the revision has a checksum in full, and so can be compared with others.
func IsWhole(revision string) bool {
	_, isSum := checksum(revision)
	return isSum
}

// checksum returns "algorithm:hex" of a revision such as "main@sha1:a…", "sha1:a…" or "a…", or the revision itself and false if it has none.
func checksum(revision string) (sum string, isSum bool) {
	sum = revision[strings.LastIndex(revision, "@")+1:]
	if isHex(sum) {
		switch len(sum) {
		case 40:
			return "sha1:" + sum, true
		case 64:
			return "sha256:" + sum, true
		}
	}
	if algorithm, hex, found := strings.Cut(sum, ":"); found && algorithm != "" && len(hex) >= 40 && isHex(hex) {
		return sum, true
	}
	return revision, false
}

func isHex(text string) bool {
	for i := range len(text) {
		if c := text[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
