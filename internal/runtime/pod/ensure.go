package pod

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/runtime"
	"github.com/stack-controller/stack-controller/internal/runtime/pod/credentials"
	"github.com/stack-controller/stack-controller/internal/runtime/pod/shape"
)

const (
	// maxEvents bounds how many events about one object are read; the API server keeps them for an hour.
	maxEvents = 200
	// nudgedAnnotation is set on a StatefulSet so that its controller looks at it.
	nudgedAnnotation = "auto.pulumi.com/retry-requested-at"
)

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups="",resources=events,verbs=list

// observe makes sure that the objects are as they should be and gathers what a decision is made from, the cheap facts first.
func (r *Runtime) observe(ctx context.Context, t *tracker, workspace *autov1alpha1.Workspace) (*observation, error) {
	certificate, err := r.ensureCertificate(ctx, workspace)
	if err != nil {
		return nil, err
	}
	objects, err := r.wanted(ctx, workspace, certificate)
	if err != nil {
		return nil, err
	}
	o := &observation{
		now:     time.Now(),
		wanted:  marks{revision: objects.RevisionHash, agent: objects.AgentRevision},
		address: shape.Address(workspace, r.options.ClusterDomain),
	}
	if err := r.applyAll(ctx, t, workspace, objects, o); err != nil {
		return nil, err
	}
	if err := r.findPod(ctx, t, workspace, o); err != nil {
		return nil, err
	}
	if err := r.findEvents(ctx, workspace, o); err != nil {
		return nil, err
	}
	if o.pod != nil && o.owned() && agentRuns(o.pod) {
		if o.renewing, err = r.prepare(ctx, workspace, o.pod, certificate); err != nil {
			return nil, err
		}
	}
	o.mayRoll = o.pod != nil && outdated(o) && o.applied() && r.rollout.begin(keyOf(workspace), o.now)
	if wantsAnswer(o) {
		o.agent = r.ask(ctx, t, workspace, o.now)
	}
	// What is not known because the time is over must not be taken for an answer.
	return o, ctx.Err()
}

// wanted builds the objects of the workspace.
func (r *Runtime) wanted(ctx context.Context, workspace *autov1alpha1.Workspace, certificate []byte) (*shape.Objects, error) {
	identity, err := r.tokens.Identity(ctx)
	if err != nil {
		return nil, err
	}
	return shape.Build(workspace, shape.Settings{
		AgentImage:           r.options.AgentImage,
		AgentImagePullPolicy: r.options.AgentImagePullPolicy,
		AgentArgs:            r.options.AgentArgs,
		Controller:           identity,
		TokenAudience:        credentials.Audience(workspace.Namespace, workspace.Name),
		SecretHash:           fingerprint(certificate),
	})
}

// applyAll applies the objects. When the API server refuses them, a StatefulSet that is there already is kept in view: its
// pod may be just what the user wants.
func (r *Runtime) applyAll(ctx context.Context, t *tracker, workspace *autov1alpha1.Workspace, objects *shape.Objects, o *observation) error {
	err := r.applyService(ctx, workspace, objects.Service)
	if err == nil {
		o.statefulSet, err = r.applyStatefulSet(ctx, t, workspace, objects.StatefulSet)
	}
	if err == nil {
		return nil
	}
	if o.rejected = rejection(err); o.rejected == nil {
		return err
	}
	present := objects.StatefulSet.DeepCopy()
	if found, readErr := r.get(ctx, workspace, present.Name, present); readErr != nil {
		return readErr
	} else if found && metav1.IsControlledBy(present, workspace) {
		o.statefulSet = present
	}
	return nil
}

// findPod looks for the pod.
func (r *Runtime) findPod(ctx context.Context, t *tracker, workspace *autov1alpha1.Workspace, o *observation) error {
	pod := &corev1.Pod{}
	found, err := r.get(ctx, workspace, shape.PodName(workspace), pod)
	if err != nil {
		return err
	}
	if !found {
		o.missingSince = t.missedPod(o.now)
		o.nudgeAt = t.nudgeAt()
		return nil
	}
	t.sawPod(pod.UID)
	o.pod, o.drainingSince = pod, t.drainingSince
	return nil
}

// findEvents reads the events that the decision needs, if any. They are not watched: there are many, and few are needed.
func (r *Runtime) findEvents(ctx context.Context, workspace *autov1alpha1.Workspace, o *observation) error {
	about := wantsEvents(o)
	if about == "" {
		return nil
	}
	list := &corev1.EventList{}
	err := r.options.Live.List(ctx, list, client.InNamespace(workspace.Namespace), client.MatchingFields{"involvedObject.uid": string(about)},
		client.Limit(maxEvents))
	if err != nil {
		return fmt.Errorf("list the events about the pod: %w", err)
	}
	o.events = list.Items
	return nil
}

// act does what was decided and returns the status.
func (r *Runtime) act(ctx context.Context, t *tracker, workspace *autov1alpha1.Workspace, o *observation, d decision) (runtime.Status, error) {
	t.drain(o.now, d.action == actionDrain || d.action == actionReplace)
	r.roll(keyOf(workspace), o, d)
	log := r.options.Log.WithValues("workspace", keyOf(workspace))
	var err error
	switch d.action {
	case actionNone, actionDrain:
	case actionNudge:
		log.V(1).Info("asking for another attempt to create the pod", "problem", d.status.Message)
		d.status.RetryAfter = t.nudged(o.now)
		err = r.nudge(ctx, workspace, o)
	case actionReplace:
		log.Info("replacing the pod", "pod", o.pod.Name, "reason", d.status.Message)
		err = r.replace(ctx, o.pod)
	case actionHurry:
		log.Info("shortening the time that the pod has to end: its agent has nothing to do and did not hear of it", "pod", o.pod.Name)
		err = r.replace(ctx, o.pod, client.GracePeriodSeconds(hurriedGrace))
	}
	if o.rejected != nil && d.status.RetryAfter == 0 {
		d.status.RetryAfter = o.rejected.RetryAfter
	}
	if o.renewing && d.status.RetryAfter == 0 {
		d.status.RetryAfter = patientInterval
	}
	return d.status, err
}

// roll keeps the place among the pods that are replaced because the controller is another one, or gives it to the next.
func (r *Runtime) roll(key types.NamespacedName, o *observation, d decision) {
	switch {
	case o.pod == nil || o.pod.DeletionTimestamp != nil || d.action == actionDrain || d.action == actionReplace:
		// Under way, if it was.
	case outdated(o) && o.applied() && !o.mayRoll:
		// It waits.
	case outdated(o) || d.status.Ready:
		r.rollout.end(key)
	}
}

// nudge makes a change to the StatefulSet that means nothing, upon which its controller tries again.
func (r *Runtime) nudge(ctx context.Context, workspace *autov1alpha1.Workspace, o *observation) error {
	set := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: workspace.Namespace, Name: o.statefulSet.Name}}
	set.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("StatefulSet"))
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"annotations":{%q:%q}}}`, o.statefulSet.UID, nudgedAnnotation, o.now.UTC().Format(time.RFC3339))
	err := r.options.Client.Patch(ctx, set, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldOwner))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("ask for another attempt to create the pod: %w", err)
	}
	return nil
}

// replace deletes this very pod.
func (r *Runtime) replace(ctx context.Context, pod *corev1.Pod, options ...client.DeleteOption) error {
	err := r.options.Client.Delete(ctx, pod, append(options, client.Preconditions{UID: &pod.UID})...)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s: %w", pod.Name, err)
	}
	return nil
}
