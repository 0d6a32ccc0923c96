package stack

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/stack/readyexpr"
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

// evaluating returns the evaluations for a reconcile of the Stack.
func (r *Reconciler) evaluating(stack types.NamespacedName) *evaluations {
	e := &evaluations{evaluate: r.evaluate, left: maxEvaluationTime, ready: map[[sha256.Size]byte]bool{}}
	if e.evaluate == nil {
		e.evaluate = readyexpr.Evaluate
	}
	if known, found := r.evaluated.Load(stack); found {
		e.before = known.(map[[sha256.Size]byte]bool)
	}
	return e
}

// keepEvaluated keeps the expressions that were true for the next reconcile of the Stack if that one has to evaluate the rest (goesOn), and
// drops them otherwise.
func (r *Reconciler) keepEvaluated(stack types.NamespacedName, e *evaluations, goesOn bool) {
	if goesOn {
		r.evaluated.Store(stack, e.ready)
		return
	}
	r.evaluated.Delete(stack)
}

// errEvaluationTime is returned when the expressions of a Stack took so long that the rest has to follow later.
var errEvaluationTime = fmt.Errorf("the readyExprs of the dependencies take more than %s together: the rest follows in %s", maxEvaluationTime, evaluationPause)

// isReady evaluates the expression of a dependency, unless that was done for the same versions of both Stacks.
func (e *evaluations) isReady(ctx context.Context, expression string, self, required *pulumiv1.Stack) (bool, error) {
	from := []string{string(self.UID), self.ResourceVersion, string(required.UID), required.ResourceVersion, expression}
	key := sha256.Sum256([]byte(strings.Join(from, " ")))
	switch {
	case e.before[key]:
		e.ready[key] = true
		return true, nil
	case e.left <= 0:
		return false, errEvaluationTime
	}
	begin := time.Now()
	ready, err := e.evaluate(ctx, expression, self, required)
	e.left -= time.Since(begin)
	if ready {
		e.ready[key] = true
	}
	return ready, err
}
