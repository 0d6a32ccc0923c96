package stack

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/readyexpr"
)

const (
	// maxEvaluationTime is after how long no further readyExpr is evaluated in a reconcile of the Stack: others need the worker, too. The rest
	// follows evaluationPause later.
	maxEvaluationTime = 500 * time.Millisecond
	evaluationPause   = time.Second
)

// evaluations are those of one reconcile.
type evaluations struct {
	evaluate func(ctx context.Context, expression string, self, dep *pulumiv1.Stack) (bool, error)
	// left is for how long there may be more of them.
	left time.Duration
	// ready has the digests of what was found to be ready, and before what the last reconcile found, if it did not get to the end.
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

// keepEvaluated keeps what was found to be ready for the next reconcile of the Stack, if that is to go on from there.
func (r *Reconciler) keepEvaluated(stack types.NamespacedName, e *evaluations, goesOn bool) {
	if goesOn {
		r.evaluated.Store(stack, e.ready)
		return
	}
	r.evaluated.Delete(stack)
}

// errEvaluationTime says that the expressions of a Stack took so long that the rest has to follow later.
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
