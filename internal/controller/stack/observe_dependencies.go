package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/informercache"
)

const (
	// shortestWindow replaces a succeededWithinDuration that is shorter. It takes longer than that until an update has ended and its dependent
	// has noticed, so the prerequisite would run again and again, and the dependent never.
	shortestWindow = 10 * time.Second
	// maxExpressions is how many dependencies with a readyExpr a Stack may have.
	maxExpressions = 100
	// maxWalk is how many Stacks the search for a cycle visits at most.
	maxWalk = 1000
	// maxShownPath is how many Stacks of a cycle are named.
	maxShownPath = 20
	// maxDependencies is how many dependencies a Stack may have. The cache has an index of them.
	maxDependencies = maxIndexed
)

// dependsOnField is the word for a Stack in spec.dependsOn in messages.
const dependsOnField = "dependency"

// dependency is a Stack, or an object of another kind, that a Stack waits for, from spec.prerequisites or spec.dependsOn.
type dependency struct {
	name types.NamespacedName
	// kind is empty for a Stack.
	kind schema.GroupVersionKind
	// field is "prerequisite" or dependsOnField.
	field string
	// reason is the reason to show when the dependency is not ready.
	reason string
	// window is how long ago the last success may be; nil stands for any time.
	window *time.Duration
	// expression says when the dependency is ready, in place of its condition.
	expression string
	// onlyExists says that it need not be ready.
	onlyExists bool
	// optional is true when the dependency need not exist.
	optional bool
}

// dependencyProblem is why another Stack keeps this one from being updated.
type dependencyProblem struct {
	// reason and message go into the conditions.
	reason, message string
	// permanent says that nothing but an edit helps, foreign that nothing but an edit of the other Stack does.
	permanent, foreign bool
	// after is the time to the next reconcile; zero stands for waitInterval.
	after time.Duration
}

// agedPrerequisite is a prerequisite that is ready and succeeded too long ago. It matters only when there is something to update.
type agedPrerequisite struct {
	name types.NamespacedName
	// version is the resourceVersion of the prerequisite.
	version string
	// request is the value to write into the annotation that requests an update; empty when it is there already, or when the prerequisite
	// cannot run.
	request string
	message string
}

// dependent is a Stack that names another one as its prerequisite or dependency.
type dependent struct {
	name     types.NamespacedName
	deleting bool
}

// dependenciesOf returns the Stacks that the Stack waits for. A Stack that is being deleted waits for none.
func dependenciesOf(stack *pulumiv1.Stack) []dependency {
	if !stack.DeletionTimestamp.IsZero() {
		return nil
	}
	return namedDependencies(stack)
}

// namedDependencies returns the Stacks that the spec names, also those of a Stack that is being deleted. It returns at most
// maxDependencies, without reading the others. For objects of other kinds, see objectsOf.
func namedDependencies(stack *pulumiv1.Stack) []dependency {
	var list []dependency
	for _, prerequisite := range stack.Spec.Prerequisites[:min(len(stack.Spec.Prerequisites), maxDependencies)] {
		item := dependency{
			name:  types.NamespacedName{Namespace: stack.Namespace, Name: prerequisite.Name},
			field: "prerequisite", reason: pulumiv1.PrerequisiteNotSatisfiedReason,
		}
		if required := prerequisite.Requirement; required != nil && required.SucceededWithinDuration != nil {
			item.window = &required.SucceededWithinDuration.Duration
		}
		list = append(list, item)
	}
	for _, reference := range stack.Spec.DependsOn[:min(len(stack.Spec.DependsOn), maxDependencies-len(list))] {
		if reference.IsStack() {
			list = append(list, dependencyOf(stack, &reference))
		}
	}
	for _, name := range autov1alpha1.StacksOf(stack.Namespace, stack.Spec.Inputs) {
		known := slices.ContainsFunc(list, func(item dependency) bool { return item.name == name && item.field == dependsOnField })
		if !known && len(list) < maxDependencies {
			list = append(list, dependency{name: name, field: dependsOnField, reason: pulumiv1.DependencyNotReadyReason, optional: hasDefaults(stack, name)})
		}
	}
	return list
}

// dependencyOf returns the dependency of an entry of spec.dependsOn.
func dependencyOf(stack *pulumiv1.Stack, reference *pulumiv1.DependencyReference) dependency {
	return dependency{
		name:  types.NamespacedName{Namespace: cmp.Or(reference.Namespace, stack.Namespace), Name: reference.Name},
		field: dependsOnField, reason: pulumiv1.DependencyNotReadyReason, expression: reference.ReadyExpr, onlyExists: reference.OnlyExists(),
	}
}

// observeDependencies finds the first problem with the dependencies of the Stack. Problems that need an edit come first.
func (r *Reconciler) observeDependencies(ctx context.Context, o *observation) error {
	list, objects := dependenciesOf(o.stack), objectsOf(o.stack)
	if len(list)+len(objects) == 0 || o.stack.Spec.Suspend || o.isUpdating() {
		return nil // No update can start.
	}
	if o.dependency = r.checkDependencies(o.stack, slices.Concat(list, objects)); o.dependency != nil {
		return nil
	}
	self := client.ObjectKeyFromObject(o.stack)
	cameFrom, err := r.walk(ctx, o.stack, dependenciesOf)
	if err != nil {
		return err
	}
	if _, inCycle := cameFrom[self]; inCycle {
		o.dependency = cycleProblem(self, cameFrom)
		return nil
	}
	if o.dependency, err = r.checkConsent(ctx, o.stack); err != nil || o.dependency != nil {
		return err
	}
	evaluating := r.evaluating(&r.evaluated, self)
	for _, item := range list {
		if err = r.observeDependency(ctx, o, item, evaluating); err != nil || o.dependency != nil {
			break
		}
	}
	keepEvaluated(&r.evaluated, self, evaluating, o.dependency != nil && o.dependency.after == evaluationPause)
	return err
}

// checkDependencies returns the first problem with the fields themselves, which does not depend on the other Stacks.
func (r *Reconciler) checkDependencies(stack *pulumiv1.Stack, list []dependency) *dependencyProblem {
	count := len(stack.Spec.Prerequisites) + len(stack.Spec.DependsOn) + len(autov1alpha1.StacksOf(stack.Namespace, stack.Spec.Inputs))
	if count > maxDependencies {
		return &dependencyProblem{reason: pulumiv1.SpecInvalidReason, permanent: true,
			message: fmt.Sprintf("a Stack may have %d prerequisites, dependencies and Stacks in inputs, and this one has %d", maxDependencies, count)}
	}
	expressions := 0
	for _, item := range list {
		if !r.Scope.Reaches(stack.Namespace, item.name.Namespace) {
			return &dependencyProblem{reason: pulumiv1.AccessDeniedReason, permanent: true,
				message: fmt.Sprintf("cannot depend on %s: references to another namespace are not allowed", item.object())}
		}
		if problem := r.checkKind(item); problem != nil {
			return problem
		}
		if item.expression == "" {
			continue
		}
		if expressions++; expressions > maxExpressions {
			return &dependencyProblem{reason: pulumiv1.InvalidCELExpressionReason, permanent: true,
				message: fmt.Sprintf("a Stack may have %d dependencies with a readyExpr, and this one has more", maxExpressions)}
		}
		if err := item.checkExpression(); err != nil {
			return &dependencyProblem{reason: pulumiv1.InvalidCELExpressionReason, permanent: true,
				message: fmt.Sprintf("the readyExpr of dependency %s cannot be used: %s", item, err)}
		}
	}
	return nil
}

func (r *Reconciler) observeDependency(ctx context.Context, o *observation, item dependency, evaluating *evaluations) error {
	required, err := r.getStack(ctx, item.name)
	problem := ""
	switch {
	case apierrors.IsForbidden(err):
		problem = "cannot be read: this controller may not look into its namespace"
	case err != nil:
		return err
	default:
		if problem, err = unmet(ctx, item, o.stack, required, evaluating); err != nil {
			// The message does not contain the progress: another message in the status would be another version of this Stack, and all expressions
			// would be evaluated again.
			o.dependency = &dependencyProblem{reason: item.reason, after: evaluationPause, message: err.Error()}
			return nil
		}
	}
	if problem != "" {
		o.dependency = &dependencyProblem{reason: item.reason, message: fmt.Sprintf("%s %s %s", item.field, item.name, problem)}
		return nil
	}
	if required == nil {
		return nil // the inputs have defaults
	}
	if o.aged == nil {
		o.aged = aged(required, item, o.now)
	}
	if o.behind == nil && item.followsRevision() {
		o.behind = r.behindRevision(o, item, required)
	}
	return nil
}

// followsRevision reports whether the dependency has to deploy a revision of a common source first, as in Flux. An expression says by itself
// what is required, as does ready: false, and prerequisites are those of the Pulumi Kubernetes Operator, which has no such rule.
func (d dependency) followsRevision() bool {
	return d.field == dependsOnField && d.expression == "" && !d.onlyExists
}

// behindRevision returns what to wait for if the dependency has not deployed the artifact of the source that both Stacks use; nil if it
// has. A preview deploys nothing, and only other previews go on after it. The result matters only when there is something to update. A
// suspended dependency would never follow, so nothing waits for it. Stacks that poll a git repository themselves have no common source,
// because each polls at its own time.
func (r *Reconciler) behindRevision(o *observation, item dependency, required *pulumiv1.Stack) *dependencyProblem {
	shared := r.Sources.Key(o.stack)
	if o.artifact == nil || o.held != nil || required.Spec.Suspend || shared == "" || shared != r.Sources.Key(required) {
		return nil
	}
	switch last := required.Status.LastUpdate; {
	// Another artifact may have the name of the revision: the source includes another one, or the Program was created anew.
	case required.Status.LastAppliedRevision == o.artifact.Revision && last.LastSuccessfulCommit == commitOf(o.artifact):
		return nil
	case last.Type == autov1alpha1.UpdateTypePreview && !o.stack.IsPreview():
		return &dependencyProblem{reason: item.reason,
			message: fmt.Sprintf("%s %s only previews %s, and deploys nothing while its spec.preview is true", item.field, item.name, describeRevision(o.artifact))}
	case last.LastAttemptedCommit == commitOf(o.artifact):
		return nil
	}
	return &dependencyProblem{reason: item.reason,
		message: fmt.Sprintf("%s %s has not deployed %s of the common source yet", item.field, item.name, describeRevision(o.artifact))}
}

// getStack returns the named Stack; nil when it does not exist. The caller must not change it. The cache does not have the Stacks of other
// shards and of namespaces that this controller does not watch: these are read from the API server.
func (r *Reconciler) getStack(ctx context.Context, name types.NamespacedName) (*pulumiv1.Stack, error) {
	if name.Name == "" {
		return nil, nil // The API server admits an empty name in a reference, but not in a request.
	}
	stack := &pulumiv1.Stack{}
	err := r.Get(ctx, name, stack, client.UnsafeDisableDeepCopy)
	large, isLarge := errors.AsType[*informercache.TooLargeError](err)
	switch {
	case err == nil:
		return stack, nil
	case isLarge:
		return nil, large
	case apierrors.IsNotFound(err) && r.Shard == nil:
		return nil, nil // The watch on it wakes the Stack.
	}
	stack = &pulumiv1.Stack{}
	err = r.APIReader.Get(ctx, name, stack)
	switch {
	case err == nil:
		return stack, nil
	case apierrors.IsNotFound(err):
		return nil, nil
	}
	return nil, fmt.Errorf("read the stack %s: %w", name, err)
}

// unmet returns why the dependency is not ready; empty when it is ready. The only error that it returns is errEvaluationTime.
func unmet(ctx context.Context, item dependency, self, required *pulumiv1.Stack, evaluating *evaluations) (problem string, err error) {
	switch {
	case item.onlyExists && required != nil && required.DeletionTimestamp.IsZero(), item.optional && required == nil:
		return "", nil
	case item.expression == "" || required == nil:
		return notReady(required), nil
	}
	ready, err := evaluating.isReady(ctx, item.expression, self, required)
	return describeEvaluation(item.expression, ready, err)
}

func notReady(required *pulumiv1.Stack) string {
	switch {
	case required == nil:
		return "does not exist"
	case required.Status.ObservedGeneration != required.Generation || !conditions.IsReady(required):
		return "is not ready"
	case required.Status.LastUpdate == nil || required.Status.LastUpdate.State != pulumiv1.StackUpdateSucceeded:
		return "has not succeeded yet"
	}
	return ""
}

// aged returns what to do about a prerequisite that succeeded longer ago than its window; nil if it did not.
func aged(required *pulumiv1.Stack, item dependency, now time.Time) *agedPrerequisite {
	if item.window == nil {
		return nil
	}
	window, last := max(*item.window, shortestWindow), required.Status.LastUpdate
	age := now.Sub(last.LastResyncTime.Time)
	if age <= window {
		return nil
	}
	found := &agedPrerequisite{name: item.name, version: required.ResourceVersion}
	found.message = fmt.Sprintf("%s %s succeeded %s ago, which is longer than %s", item.field, item.name, age.Round(time.Second), window)
	request := requestOfDependents(required)
	switch {
	case !required.DeletionTimestamp.IsZero():
		found.message += "; it is being deleted"
	case required.Spec.Suspend:
		found.message += "; it is suspended and has to be resumed to run again"
	case required.Annotations[pulumiv1.ReconcileRequestAnnotation] == request:
		found.message += "; it was asked to run again"
	default:
		found.message += "; it is asked to run again"
		found.request = request
	}
	return found
}

// walk searches breadth-first from the Stack through its dependencies, as list returns them. It returns the predecessor of each Stack that
// it found. If the first Stack is in a cycle, it is one of them. The search costs one read for each Stack, of at most maxWalk Stacks.
func (r *Reconciler) walk(
	ctx context.Context, stack *pulumiv1.Stack, list func(*pulumiv1.Stack) []dependency,
) (cameFrom map[types.NamespacedName]types.NamespacedName, err error) {
	cameFrom = map[types.NamespacedName]types.NamespacedName{}
	queue := []types.NamespacedName{}
	for here := client.ObjectKeyFromObject(stack); ; {
		for _, item := range r.allowedDependencies(stack, list) {
			if _, known := cameFrom[item.name]; !known && len(cameFrom) < maxWalk {
				cameFrom[item.name] = here
				queue = append(queue, item.name)
			}
		}
		if len(queue) == 0 {
			return cameFrom, nil
		}
		here, queue = queue[0], queue[1:]
		if stack, err = r.getStack(ctx, here); err != nil && !apierrors.IsForbidden(err) {
			return nil, err
		}
	}
}

// allowedDependencies returns the dependencies of the Stack that are allowed. A Stack with a dependency that is not allowed waits in any
// case, see checkDependencies.
func (r *Reconciler) allowedDependencies(stack *pulumiv1.Stack, list func(*pulumiv1.Stack) []dependency) []dependency {
	if stack == nil {
		return nil
	}
	return slices.DeleteFunc(list(stack), func(item dependency) bool {
		return !r.Scope.Reaches(stack.Namespace, item.name.Namespace)
	})
}

// cycleProblem names the shortest way from the Stack through its dependencies back to itself.
func cycleProblem(self types.NamespacedName, cameFrom map[types.NamespacedName]types.NamespacedName) *dependencyProblem {
	names := []string{self.String()}
	for here := cameFrom[self]; here != self; here = cameFrom[here] {
		names = append(names, here.String())
	}
	names = append(names, self.String())
	slices.Reverse(names)
	if left := len(names) - maxShownPath; left > 0 {
		names = append(names[:maxShownPath-1], fmt.Sprintf("(%d more)", left), names[len(names)-1])
	}
	return &dependencyProblem{reason: pulumiv1.DependencyCycleReason, permanent: true,
		message: "the stacks wait for each other, remove one of these dependencies: " + strings.Join(names, " → ")}
}

// observeDependents finds the Stacks that have to be deleted before this one. A dependent that this Stack itself depends on, directly or
// not, does not count, so that the Stacks of a cycle do not wait for each other.
func (r *Reconciler) observeDependents(ctx context.Context, o *observation) error {
	if !destroysAfterDependents(o.stack) || o.isUpdating() {
		return nil
	}
	found, err := r.findDependents(ctx, o.stack)
	if err != nil || len(found) == 0 {
		return err
	}
	needed, err := r.walk(ctx, o.stack, namedDependencies)
	if err != nil {
		return err
	}
	o.dependents = slices.DeleteFunc(found, func(item dependent) bool {
		_, isNeeded := needed[item.name]
		return isNeeded
	})
	return nil
}

// destroysAfterDependents reports whether other Stacks may have to be deleted before the Stack's resources are destroyed.
func destroysAfterDependents(stack *pulumiv1.Stack) bool {
	return !stack.DeletionTimestamp.IsZero() && stack.Spec.DestroyAfterDependents && !stack.Spec.Suspend
}

// findDependents returns the Stacks that name this one as a dependency. The cache may lack the Stacks of other shards and namespaces. If
// there may be such Stacks and the cache has no dependent, only the API server can confirm that there is none.
func (r *Reconciler) findDependents(ctx context.Context, stack *pulumiv1.Stack) ([]dependent, error) {
	self := client.ObjectKeyFromObject(stack)
	var known pulumiv1.StackList
	if err := r.List(ctx, &known, client.MatchingFields{dependencyIndex: self.String()}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the stacks that depend on this one: %w", err)
	}
	if found := r.dependentsAmong(known.Items, self); len(found) > 0 {
		return found, nil
	}
	if r.Scope.OtherNamespaces {
		found, err := r.listDependents(ctx, self)
		if !apierrors.IsForbidden(err) {
			return found, err
		}
	}
	if r.Shard != nil {
		return r.listDependents(ctx, self, client.InNamespace(stack.Namespace))
	}
	return r.shortenedDependents(ctx, self)
}

// shortenedDependents returns the dependents in the namespace that the index lacks, because the cache keeps only a part of them
// (informercache.IsShortened).
func (r *Reconciler) shortenedDependents(ctx context.Context, self types.NamespacedName) (found []dependent, err error) {
	var known pulumiv1.StackList
	if err := r.List(ctx, &known, client.InNamespace(self.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the stacks that depend on this one: %w", err)
	}
	for i := range known.Items {
		if !informercache.IsShortened(&known.Items[i]) {
			continue
		}
		stack, err := r.getStack(ctx, client.ObjectKeyFromObject(&known.Items[i]))
		if err != nil {
			return nil, err
		}
		if stack != nil {
			found = append(found, r.dependentsAmong([]pulumiv1.Stack{*stack}, self)...)
		}
	}
	return found, nil
}

// listDependents reads the dependents from the API server.
func (r *Reconciler) listDependents(ctx context.Context, self types.NamespacedName, among ...client.ListOption) (found []dependent, err error) {
	err = r.listLive(ctx, func() client.ObjectList { return &pulumiv1.StackList{} }, func(page client.ObjectList) {
		found = append(found, r.dependentsAmong(page.(*pulumiv1.StackList).Items, self)...)
	}, among...)
	if err != nil {
		return nil, fmt.Errorf("list the stacks that depend on this one: %w", err)
	}
	return found, nil
}

// dependentsAmong returns those of the given Stacks that name the Stack self as a dependency and are allowed to.
func (r *Reconciler) dependentsAmong(stacks []pulumiv1.Stack, self types.NamespacedName) []dependent {
	var found []dependent
	for i := range stacks {
		name := client.ObjectKeyFromObject(&stacks[i])
		dependencies := r.allowedDependencies(&stacks[i], namedDependencies)
		if name != self && slices.ContainsFunc(dependencies, func(item dependency) bool { return item.name == self }) {
			found = append(found, dependent{name: name, deleting: !stacks[i].DeletionTimestamp.IsZero()})
		}
	}
	return found
}
