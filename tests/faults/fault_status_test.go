package faults_test

import (
	"context"
	"errors"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// The clock of the machine is left alone: what counts is what a wrong one leaves in the status.
var statusFaults = []fault{
	{kind: "clock was wrong", short: true, mayMiss: true, inject: moveTimes},
}

const century = 100 * 365 * 24 * time.Hour

// moveTimes has an update fail, because the resources cannot note what is done to them, and then writes times into the status
// that are far from now. When the cause is gone the Stack has to be tried again all the same.
func moveTimes(ctx context.Context, on *target) (func(context.Context) error, error) {
	victim := on.living()
	if victim == nil {
		return nil, nil
	}
	var blocked []string
	heal := func(context.Context) error {
		var failed []error
		for _, dir := range blocked {
			failed = append(failed, os.Remove(dir))
		}
		return errors.Join(failed...)
	}
	var failed error
	err := victim.push(ctx, 1, func() {
		for resource := range victim.resources {
			victim.resources[resource] = victim.version
			dir := victim.journal(resource, victim.version)
			failed = errors.Join(failed, os.Mkdir(dir, 0o700))
			blocked = append(blocked, dir)
		}
	})
	if err := errors.Join(failed, victim.tolerate(err)); err != nil {
		return heal, err
	}
	by := []time.Duration{time.Hour, century, -century}[on.random.IntN(3)]
	for deadline := time.Now().Add(5 * hunt); time.Now().Before(deadline); wait(ctx, pollInterval) {
		moved, err := victim.moveTimes(ctx, time.Now().Add(by))
		if err != nil || moved {
			on.hit = moved
			return heal, err
		}
	}
	return heal, nil
}

// moveTimes sets the times in the status of a Stack that failed, and tells whether it did.
func (a *app) moveTimes(ctx context.Context, to time.Time) (moved bool, err error) {
	err = a.scene.insist(ctx, func(ctx context.Context) error {
		stack := &pulumiv1.Stack{}
		if err := a.scene.system.Client.Get(ctx, a.Key(), stack); err != nil {
			return err
		}
		last := stack.Status.LastUpdate
		if last == nil || last.State != pulumiv1.StackUpdateFailed || last.Failures == 0 || stack.Status.CurrentUpdate != nil {
			return nil
		}
		before := stack.DeepCopy()
		last.LastResyncTime = metav1.NewTime(to)
		for i := range stack.Status.Conditions {
			stack.Status.Conditions[i].LastTransitionTime = metav1.NewTime(to)
		}
		err := a.scene.system.Client.Status().Patch(ctx, stack, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
		moved = err == nil
		return err
	})
	return moved, client.IgnoreNotFound(err)
}
