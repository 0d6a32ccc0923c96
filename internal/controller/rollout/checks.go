package rollout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/readyexpr"
	"github.com/stack-controller/stack-controller/internal/informercache"
)

const (
	// checkBudget bounds the time that the checks of waves take in one reconcile, with the reads that they need, for which there is readBudget of
	// it. The rest is evaluated checkInterval later; until then nobody knows whether these Stacks pass.
	checkBudget   = 500 * time.Millisecond
	readBudget    = checkBudget / 2
	checkInterval = time.Second
)

// checks has what the check of its wave said about each Stack of a StackRollout.
type checks map[types.UID]verdict

// verdict is what a check says about a version of a Stack. Without an expression it says that the cache has only the small fields of that version: a
// large output must not count as one that is missing.
type verdict struct {
	version, expression string
	// problem is why the Stack does not pass; empty when it does.
	problem string
}

// checksOf returns a function that checks Stacks of the StackRollout in one reconcile. It evaluates an expression once for each version of a
// Stack. known is false when that has to wait for the next reconcile, as for a Stack that has to be read from the API server first.
func (r *Reconciler) checksOf(
	ctx context.Context, rollout *autov1alpha1.StackRollout, stacks []*pulumiv1.Stack,
) func(stack types.NamespacedName, expression string) (problem string, known bool) {
	value, _ := r.checks.LoadOrStore(types.NamespacedName{Namespace: rollout.Namespace, Name: rollout.Name}, checks{}) // it is reconciled once at a time
	verdicts := value.(checks)
	if len(verdicts) > 2*len(stacks) {
		clear(verdicts) // most of these Stacks are gone
	}
	whole, unreadable, start := map[types.NamespacedName]*pulumiv1.Stack{}, map[types.NamespacedName]error{}, time.Now()
	for i := 0; i < len(stacks) && len(verdicts) > 0; i++ {
		stack, name := stacks[i], client.ObjectKeyFromObject(stacks[i])
		if had, found := verdicts[stack.UID]; found && had.expression == "" && had.version == stack.ResourceVersion && time.Since(start) < readBudget {
			switch read, err := r.wholeOf(ctx, name); {
			case err == nil:
				whole[name] = read
				delete(verdicts, stack.UID) // nobody may ask for it any longer
			case apierrors.IsForbidden(err), errors.As(err, new(*informercache.TooLargeError)):
				unreadable[name] = err
			default:
				ctrl.LoggerFrom(ctx).Error(err, "cannot read a large stack that has to be checked", "stack", name)
			}
		}
	}
	// Most StackRollouts ask for none, and it takes as long as half of the decision.
	byName := sync.OnceValue(func() map[types.NamespacedName]*pulumiv1.Stack {
		found := make(map[types.NamespacedName]*pulumiv1.Stack, len(stacks))
		for _, stack := range stacks {
			found[client.ObjectKeyFromObject(stack)] = stack
		}
		maps.Copy(found, whole)
		return found
	})
	spent, evaluated := time.Since(start), false
	return func(name types.NamespacedName, expression string) (problem string, known bool) {
		stack := byName()[name]
		if had, found := verdicts[stack.UID]; found && had.version == stack.ResourceVersion && had.expression == expression {
			return had.problem, true
		}
		if err := unreadable[name]; err != nil {
			return fmt.Sprintf("check: %s", err), true
		}
		if informercache.IsShortened(stack) {
			verdicts[stack.UID] = verdict{version: stack.ResourceVersion}
			return "", false
		}
		if evaluated && spent > checkBudget { // one is, however long the reads took, or the checks might never end
			return "", false
		}
		start := time.Now()
		passes, err := readyexpr.EvaluateMember(ctx, expression, visibleFrom(rollout.Namespace, stack))
		switch {
		case err != nil:
			problem = fmt.Sprintf("check: %s", err)
		case !passes:
			problem = "check is false"
		}
		spent, evaluated = spent+time.Since(start), true
		verdicts[stack.UID] = verdict{stack.ResourceVersion, expression, problem}
		return problem, true
	}
}

// wholeOf reads a Stack from the API server.
func (r *Reconciler) wholeOf(ctx context.Context, name types.NamespacedName) (*pulumiv1.Stack, error) {
	stack := &pulumiv1.Stack{}
	if err := r.APIReader.Get(ctx, name, stack); err != nil {
		return nil, fmt.Errorf("read the large stack from the API server: %w", err)
	}
	return stack, nil
}

// visibleFrom returns the Stack without the outputs that it does not share with the namespace.
func visibleFrom(namespace string, stack *pulumiv1.Stack) *pulumiv1.Stack {
	if namespace == stack.Namespace {
		return stack
	}
	shown := *stack
	shown.Status.Outputs = maps.Clone(stack.Status.Outputs)
	maps.DeleteFunc(shown.Status.Outputs, func(output string, _ apiextensionsv1.JSON) bool { return !stack.SharesOutput(namespace, output, false) })
	return &shown
}

// checkExpressions returns why the check of a wave cannot be used; nil if all can.
func checkExpressions(waves []autov1alpha1.RolloutWave) error {
	for i := range waves {
		if waves[i].Check == "" {
			continue
		}
		if err := readyexpr.CheckMember(waves[i].Check); err != nil {
			return fmt.Errorf("wave %q: check: %w", waves[i].Name, err)
		}
	}
	return nil
}
