package stack

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/readyexpr"
	"github.com/stack-controller/stack-controller/internal/objectwatch"
)

const (
	// maxEvaluationTime is the time after which a reconcile of a Stack evaluates no further readyExpr, because other Stacks need the worker,
	// too. The remaining expressions are evaluated after evaluationPause.
	maxEvaluationTime = 500 * time.Millisecond
	evaluationPause   = time.Second
)

// evaluations evaluates the readyExprs of a Stack in one reconcile.
type evaluations struct {
	evaluate func(ctx context.Context, expression string, self, dep *pulumiv1.Stack) (bool, error)
	// left is how much of maxEvaluationTime is left.
	left time.Duration
	// ready has the keys of the expressions that were true in this reconcile, see isReady. before has those of the last reconcile, if it did
	// not evaluate all expressions.
	ready, before map[[sha256.Size]byte]bool
}

// evaluating returns the evaluations for a reconcile of the Stack. The memory has what keepEvaluated kept.
func (r *Reconciler) evaluating(memory *sync.Map, stack types.NamespacedName) *evaluations {
	e := &evaluations{evaluate: r.evaluate, left: maxEvaluationTime, ready: map[[sha256.Size]byte]bool{}}
	if e.evaluate == nil {
		e.evaluate = readyexpr.Evaluate
	}
	if known, found := memory.Load(stack); found {
		e.before = known.(map[[sha256.Size]byte]bool)
	}
	return e
}

// keepEvaluated keeps the expressions that were true for the next reconcile of the Stack if that one has to evaluate the rest (goesOn), and
// drops them otherwise.
func keepEvaluated(memory *sync.Map, stack types.NamespacedName, e *evaluations, goesOn bool) {
	if goesOn {
		memory.Store(stack, e.ready)
		return
	}
	memory.Delete(stack)
}

// errEvaluationTime is returned when the expressions of a Stack took so long that the rest has to follow later.
var errEvaluationTime = fmt.Errorf("the readyExprs of the dependencies take more than %s together: the rest follows in %s", maxEvaluationTime, evaluationPause)

// isReady evaluates the expression of a dependency, unless that was done for the same versions of both Stacks.
func (e *evaluations) isReady(ctx context.Context, expression string, self, required *pulumiv1.Stack) (bool, error) {
	return e.once(expression, self, string(required.UID)+" "+required.ResourceVersion, func() (bool, error) {
		return e.evaluate(ctx, expression, self, required)
	})
}

// isObjectReady is isReady for an object of another kind.
func (e *evaluations) isObjectReady(ctx context.Context, expression string, self *pulumiv1.Stack, required *objectwatch.Object) (bool, error) {
	return e.once(expression, self, string(required.UID)+" "+required.ResourceVersion+" "+required.APIVersion, func() (bool, error) {
		return readyexpr.EvaluateObject(ctx, expression, self, required)
	})
}

// once evaluates the expression, unless it was true for the same versions of the Stack and of the other object in the last reconcile.
func (e *evaluations) once(expression string, self *pulumiv1.Stack, version string, evaluate func() (bool, error)) (bool, error) {
	key := sha256.Sum256([]byte(strings.Join([]string{string(self.UID), self.ResourceVersion, version, expression}, " ")))
	switch {
	case e.before[key]:
		e.ready[key] = true
		return true, nil
	case e.left <= 0:
		return false, errEvaluationTime
	}
	begin := time.Now()
	ready, err := evaluate()
	e.left -= time.Since(begin)
	if ready {
		e.ready[key] = true
	}
	return ready, err
}

// describeEvaluation returns why an expression says that a dependency is not ready; empty when it is ready. The only error that it returns
// is errEvaluationTime.
func describeEvaluation(expression string, ready bool, err error) (problem string, _ error) {
	switch {
	case errors.Is(err, errEvaluationTime):
		return "", err
	case errors.Is(err, readyexpr.ErrEvaluation):
		return fmt.Sprintf("is not ready: readyExpr %q: %s", readyexpr.Shorten(expression), err), nil
	case err != nil:
		return "is not ready: " + err.Error(), nil
	case !ready:
		return fmt.Sprintf("is not ready: readyExpr %q is false", readyexpr.Shorten(expression)), nil
	}
	return "", nil
}
