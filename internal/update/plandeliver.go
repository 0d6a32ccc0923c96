package update

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
)

// deliverPlan brings the plan from its Secrets to the agent that asked for it, in the background.
func (r *Reconciler) deliverPlan(o *observation) {
	workspace, plan := o.workspace.DeepCopy(), o.plan
	r.background.ensure(o.update, "deliver plan "+plan.saved.FileDigest, func(ctx context.Context, note func(func(*task))) {
		err := r.pushPlan(ctx, workspace, plan)
		note(func(task *task) { task.delivery = delivery{digest: plan.saved.FileDigest, err: err} })
	})
}

func (r *Reconciler) pushPlan(ctx context.Context, workspace *autov1alpha1.Workspace, plan planView) error {
	return r.movePlan(ctx, workspace, func(ctx context.Context, agent *client.Client) error {
		reader := &planReader{digest: sha256.New(), wanted: plan.saved.FileDigest, names: plan.saved.Secrets, read: func(name string) ([]byte, error) {
			return r.readPlanPart(ctx, workspace.Namespace, name, plan.uid)
		}}
		return agent.PushPlan(ctx, plan.saved.FileDigest, plan.saved.StoredSize, reader)
	})
}

// movePlan brings a plan to or from the agent of the Workspace when a slot is free.
func (r *Reconciler) movePlan(ctx context.Context, workspace *autov1alpha1.Workspace, move func(context.Context, *client.Client) error) error {
	release, err := r.background.plans.Acquire(ctx, workspace.Namespace)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, planTimeout)
	defer cancel()
	agent, err := r.Runtime.Connect(ctx, workspace)
	if err != nil {
		return err
	}
	return move(ctx, agent)
}

// readPlanPart returns the part of Pulumi's file that is in a Secret. The Secret has to be one of the Update that saved the plan; the error is a
// *planProblem when it is not.
func (r *Reconciler) readPlanPart(ctx context.Context, namespace, name string, owner types.UID) ([]byte, error) {
	secret := &corev1.Secret{}
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, secret)
	switch {
	case apierrors.IsNotFound(err):
		return nil, stalePlan("secret %q with a part of the plan is gone", name)
	case err != nil:
		return nil, fmt.Errorf("read the plan: %w", err)
	case ptr.Deref(metav1.GetControllerOf(secret), metav1.OwnerReference{}).UID != owner:
		return nil, stalePlan("secret %q is not the one that the plan was saved in", name)
	}
	return secret.Data[autov1alpha1.PlanFileKey], nil
}

// planReader reads Pulumi's file from its Secrets, one after the other. It fails instead of ending when that is not the file that was saved.
type planReader struct {
	read  func(name string) ([]byte, error)
	names []string
	// part is what was read and not passed on.
	part   []byte
	digest hash.Hash
	wanted string
}

// Read implements io.Reader.
func (r *planReader) Read(p []byte) (n int, err error) {
	for len(r.part) == 0 {
		if len(r.names) == 0 {
			if digestPrefix+hex.EncodeToString(r.digest.Sum(nil)) != r.wanted {
				return 0, stalePlan("the Secrets of the plan do not have what was saved in them")
			}
			return 0, io.EOF
		}
		if r.part, err = r.read(r.names[0]); err != nil {
			return 0, err
		}
		r.digest.Write(r.part)
		r.names = r.names[1:]
	}
	n = copy(p, r.part)
	r.part = r.part[n:]
	return n, nil
}
