package update

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"maps"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/objectname"
	"github.com/stack-controller/stack-controller/internal/patch"
)

// storePlan brings the plan of the operation from the agent into Secrets, in the background.
func (r *Reconciler) storePlan(o *observation) {
	update, workspace, operation := o.update.DeepCopy(), o.workspace.DeepCopy(), o.agent.operation
	r.background.ensure(o.update, "store plan", func(ctx context.Context, note func(func(*task))) {
		plan, err := r.fetchPlan(ctx, update, workspace, operation.GetPlan())
		note(func(task *task) { task.stored = storedPlan{plan: plan, err: err, at: time.Now()} })
	})
}

// fetchPlan stores a plan and returns its description for the status. Storing it again changes nothing.
func (r *Reconciler) fetchPlan(ctx context.Context, update *autov1alpha1.Update, workspace *autov1alpha1.Workspace, made *agentpb.Plan) (*autov1alpha1.SavedPlan, error) {
	writer, text := &planWriter{file: sha256.New()}, &bytes.Buffer{}
	err := r.movePlan(ctx, workspace, func(ctx context.Context, agent *client.Client) error {
		writer.store = func(number int, data map[string][]byte) (string, error) {
			return r.storePlanPart(ctx, update, number, data)
		}
		if err := agent.GetPlan(ctx, string(update.UID), writer, text); err != nil {
			return err
		}
		return writer.finish(text.Bytes())
	})
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text.Bytes())
	saved := &autov1alpha1.SavedPlan{
		ChangesDigest: digestPrefix + made.GetDigests().GetChanges(),
		InputsDigest:  digestPrefix + made.GetDigests().GetInputs(),
		ValuesDigest:  digestPrefix + made.GetDigests().GetValues(),
		StateDigest:   digestPrefix + made.GetDigests().GetState(),
		TextDigest:    digestPrefix + hex.EncodeToString(sum[:]),
		PulumiVersion: made.GetPulumiVersion(),
		Unknowns:      made.GetUnknowns(),
		StoredSize:    writer.size,
		Secrets:       writer.names,
	}
	if writer.size > 0 {
		saved.Size, saved.FileDigest = made.GetSize(), digestPrefix+hex.EncodeToString(writer.file.Sum(nil))
	}
	saved.Digest = saved.CalculateDigest()
	return saved, nil
}

// planWriter stores Pulumi's plan file in parts.
type planWriter struct {
	store func(number int, data map[string][]byte) (name string, err error)
	// file is the hash of the file so far, size its size in bytes so far.
	file hash.Hash
	size int64
	part []byte
	// names are the names of the Secrets so far.
	names []string
}

// Write implements io.Writer. It keeps the last part, which more of the file or the text may follow.
func (w *planWriter) Write(p []byte) (int, error) {
	written := len(p)
	w.file.Write(p)
	w.size += int64(written)
	for len(p) > 0 {
		if len(w.part) == agentpb.MaxPlanPart {
			if err := w.flush(nil); err != nil {
				return 0, err
			}
		}
		n := min(len(p), agentpb.MaxPlanPart-len(w.part))
		w.part = append(w.part, p[:n]...)
		p = p[n:]
	}
	return written, nil
}

// flush stores the part, together with the text if that is not nil.
func (w *planWriter) flush(text []byte) error {
	data := map[string][]byte{}
	if len(w.part) > 0 {
		data[autov1alpha1.PlanFileKey] = w.part
	}
	if text != nil {
		data[autov1alpha1.PlanTextKey] = text
	}
	name, err := w.store(len(w.names), data)
	w.names, w.part = append(w.names, name), nil
	return err
}

// finish stores what is left, and the text in the last Secret.
func (w *planWriter) finish(text []byte) error {
	if len(w.part)+len(text) > agentpb.MaxPlanPart {
		if err := w.flush(nil); err != nil {
			return err
		}
	}
	return w.flush(text)
}

// planSecretName returns the name of the Secret with a part of the plan. It is another one for an operation that was repeated, because
// Secrets of the plan that was lost, which differ, may exist.
func planSecretName(update *autov1alpha1.Update, number int) string {
	suffix := autov1alpha1.PlanSecretInfix + strconv.Itoa(number)
	if wasRepeated(update) {
		suffix += "-again"
	}
	return objectname.Shorten(update.Name, validation.DNS1123SubdomainMaxLength-len(suffix)) + suffix
}

// storePlanPart creates a Secret of a plan. If the Secret exists, it has to be the same.
func (r *Reconciler) storePlanPart(ctx context.Context, update *autov1alpha1.Update, number int, data map[string][]byte) (string, error) {
	secret := secretOf(update, planSecretName(update, number), data)
	err := r.Create(ctx, secret, patch.FieldOwner)
	switch {
	case err == nil:
		return secret.Name, nil
	case !apierrors.IsAlreadyExists(err):
		return "", fmt.Errorf("store the plan: %w", err)
	}
	switch same, err := r.isStored(ctx, update, secret); {
	case err != nil:
		return "", err
	case !same:
		return "", fmt.Errorf("store the plan: secret %q exists, and is not of this update", secret.Name)
	}
	return secret.Name, nil
}

// isStored reports whether the Secret of the Update exists as it is.
func (r *Reconciler) isStored(ctx context.Context, update *autov1alpha1.Update, secret *corev1.Secret) (bool, error) {
	existing := &corev1.Secret{}
	if err := r.APIReader.Get(ctx, ctrlclient.ObjectKeyFromObject(secret), existing); err != nil {
		return false, fmt.Errorf("look at the stored secret %q: %w", secret.Name, err)
	}
	return metav1.IsControlledBy(existing, update) && ptr.Deref(existing.Immutable, false) && maps.EqualFunc(existing.Data, secret.Data, bytes.Equal), nil
}

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

// movePlan connects to the agent of the Workspace when a slot is free, and has move transfer a plan.
func (r *Reconciler) movePlan(ctx context.Context, workspace *autov1alpha1.Workspace, move func(context.Context, *client.Client) error) error {
	release, err := r.background.plans.Acquire(ctx, workspace.Namespace)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, planTimeout)
	defer cancel()
	agent, err := r.Runtime.Wake(ctx, workspace)
	if err != nil {
		return err
	}
	return move(ctx, agent)
}

// readPlanPart returns the part of Pulumi's plan file that is in a Secret. The Secret has to belong to the Update that saved the plan;
// otherwise the error is a *planProblem.
func (r *Reconciler) readPlanPart(ctx context.Context, namespace, name string, owner types.UID) ([]byte, error) {
	secret := &corev1.Secret{}
	err := r.APIReader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, secret)
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

// planReader reads Pulumi's plan file from its Secrets, one after the other. At the end it fails if that is not the file that was saved.
type planReader struct {
	read  func(name string) ([]byte, error)
	names []string
	// part is what was read from a Secret and not returned yet.
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
