package pod

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/csaupgrade"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/credentials"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
	"github.com/stack-controller/stack-controller/internal/patch"
)

const (
	// appliedHashAnnotation on a StatefulSet or Service is the hash of what was applied, so that the object is written only when something
	// different is wanted.
	appliedHashAnnotation = "auto.pulumi.com/applied-hash"
	// retryAnnotation is set on a StatefulSet so that its controller reconciles it.
	retryAnnotation = "auto.pulumi.com/retry-requested-at"
	// noUpdates is a merge patch with which the StatefulSet controller no longer replaces the pod by itself. A server-side apply of that
	// strategy to a StatefulSet with another one fails, because it leaves the options of the other strategy in place, which were set by
	// default.
	noUpdates = `{"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":null}}}`
)

// +kubebuilder:rbac:groups=apps,resources=statefulsets,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;create;patch
// The Workspace owns these objects. Where OwnerReferencesPermissionEnforcement is on, as in OpenShift, setting the owner needs this right.
// +kubebuilder:rbac:groups=auto.pulumi.com,resources=workspaces/finalizers,verbs=update

// Secrets are read from the API server: a cache would hold all Secrets of the cluster, and would need the right to list them.
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create

// applyObjects creates or updates the objects of the Workspace, and returns an observation that has them, or that they were rejected.
func (r *Runtime) applyObjects(ctx context.Context, t *tracker, workspace *autov1alpha1.Workspace, idle bool) (*observation, error) {
	certificate, err := r.certificate(ctx, workspace)
	if apierrors.IsNotFound(err) {
		certificate, err = r.createKeyPair(ctx, workspace)
	}
	if err != nil {
		return nil, err
	}
	pod, err := r.getPod(ctx, workspace)
	if err != nil {
		return nil, err
	}
	objects, err := r.build(ctx, t, workspace, certificate, pod)
	if err != nil {
		return nil, err
	}
	o := &observation{
		now:         time.Now(),
		wanted:      revisions{inputs: objects.RevisionHash, agent: objects.AgentRevision},
		address:     podspec.Address(workspace, r.options.ClusterDomain),
		certificate: certificate,
		statefulSet: &appsv1.StatefulSet{},
		desired:     objects.StatefulSet,
		idle:        idle,
		pod:         pod,
	}
	if idle {
		if err := r.keepScaledDown(ctx, workspace, o); err != nil {
			return nil, err
		}
	}
	if _, err = r.apply(ctx, workspace, objects.Service, serviceMetadata(), func() bool { return true }); err == nil {
		err = r.applyStatefulSet(ctx, t, workspace, o)
	}
	if err == nil {
		return o, nil
	}
	return o, r.reject(ctx, workspace, o, err)
}

// reject makes an observation after the objects could not be applied, with an existing StatefulSet, because its pod may be just what the user
// wants. Then it does not matter for what reason they could not be applied, for example a webhook that does not answer. Otherwise it returns
// the error if it is one to try again at once.
func (r *Runtime) reject(ctx context.Context, workspace *autov1alpha1.Workspace, o *observation, failed error) error {
	o.rejected = refusalStatus(failed)
	if o.rejected == nil && (ctx.Err() != nil || !o.podHasInputs()) {
		return failed
	}
	o.statefulSet = &appsv1.StatefulSet{}
	found, err := r.get(ctx, workspace, o.desired.Name, o.statefulSet)
	if !found || !metav1.IsControlledBy(o.statefulSet, workspace) {
		o.statefulSet = nil
	}
	switch {
	case err != nil:
		return err
	case o.rejected == nil && o.statefulSet == nil:
		return failed
	case o.rejected == nil:
		r.options.Log.Info("cannot apply an object of a workspace, whose pod stays as it is; trying again", "workspace", keyOf(workspace), "problem", failed.Error())
		rejected := failing(autov1alpha1.ObjectRejectedReason, "the API server does not accept it, trying again: %s", quote(failed.Error()))
		rejected.RetryAfter = rejectedInterval
		o.rejected = &rejected
	}
	return nil
}

// keepScaledDown sets the desired StatefulSet of an idle Workspace to no replicas if it is scaled down already, or if there is no pod. A
// pod that runs is removed later, after its agent was asked.
func (r *Runtime) keepScaledDown(ctx context.Context, workspace *autov1alpha1.Workspace, o *observation) error {
	present := &appsv1.StatefulSet{}
	found, err := r.get(ctx, workspace, o.desired.Name, present)
	if o.pod == nil || found && isScaledDown(present) {
		o.desired.Spec.Replicas = new(int32)
	}
	return err
}

// isScaledDown reports whether the StatefulSet has no replicas.
func isScaledDown(set *appsv1.StatefulSet) bool { return ptr.Deref(set.Spec.Replicas, 1) == 0 }

// applyStatefulSet applies the desired StatefulSet if it differs, and records the version that it wrote.
func (r *Runtime) applyStatefulSet(ctx context.Context, t *tracker, workspace *autov1alpha1.Workspace, o *observation) error {
	written, err := r.apply(ctx, workspace, o.desired, o.statefulSet, func() bool { return t.unchanged(o.statefulSet, o.desired) })
	if written {
		t.applied = appliedVersion{uid: o.statefulSet.UID, generation: o.statefulSet.Generation}
	}
	return err
}

// build returns the objects that the Workspace should have, for an agent with the certificate. pod is the pod that it has; it may be nil.
func (r *Runtime) build(ctx context.Context, t *tracker, workspace *autov1alpha1.Workspace, certificate []byte, pod *corev1.Pod) (*podspec.Objects, error) {
	identity, err := r.tokens.Identity(ctx)
	if err != nil {
		return nil, err
	}
	return r.buildObjects(ctx, t, workspace, podspec.Settings{
		AgentImage:            r.options.AgentImage,
		AgentImagePullPolicy:  r.options.AgentImagePullPolicy,
		AgentArgs:             r.options.AgentArgs,
		Controller:            identity,
		TokenAudience:         credentials.Audience(workspace.Namespace, workspace.Name),
		DefaultServiceAccount: r.options.DefaultServiceAccount,
		SecretHash:            podspec.ShortHash(certificate),
	}, pod)
}

// appliedVersion is the version of a StatefulSet that this controller wrote last. A later version was written by another client.
type appliedVersion struct {
	uid        types.UID
	generation int64
}

// unchanged reports whether the specification of the StatefulSet is as it was applied, so that an edit by another client is noticed. If an
// earlier controller applied it, only the replicas and the revisions are compared: most of the specification is not in the cache.
func (t *tracker) unchanged(present, wanted *appsv1.StatefulSet) bool {
	if t.applied.uid == present.UID {
		return present.Generation <= t.applied.generation
	}
	return ptr.Equal(present.Spec.Replicas, wanted.Spec.Replicas) &&
		revisionsOf(present.Spec.Template.Annotations) == revisionsOf(wanted.Spec.Template.Annotations)
}

// createKeyPair creates the Secret with the key pair of the agent, and returns the certificate.
func (r *Runtime) createKeyPair(ctx context.Context, workspace *autov1alpha1.Workspace) ([]byte, error) {
	data, err := credentials.NewKeyPair()
	if err != nil {
		return nil, err
	}
	secret := &corev1.Secret{
		Namespace: workspace.Namespace, Name: podspec.SecretName(workspace), Labels: podspec.Labels(workspace),
		OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(workspace, autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind)),
		},
		Type: corev1.SecretTypeTLS,
		Data: data,
	}
	if err := r.options.Client.Create(ctx, secret, patch.FieldOwner); err != nil {
		return nil, fmt.Errorf("create the Secret %s: %w", secret.Name, err)
	}
	return data[corev1.TLSCertKey], nil
}

// apply makes the object as wanted. It reads the object from the cache into present, and writes only if there is no such object, if other
// content was applied to it, if the Workspace does not own it, or if unchanged returns false; so this is where it is decided that an object
// which somebody edited is applied again. After a write, present is the object as written. For an object that belongs to another owner, or
// that is being deleted, the error is a *conflictError.
func (r *Runtime) apply(
	ctx context.Context, workspace *autov1alpha1.Workspace, wanted, present client.Object, unchanged func() bool,
) (written bool, err error) {
	configuration, hash, err := applyConfiguration(wanted)
	if err != nil {
		return false, err
	}
	found, err := r.get(ctx, workspace, wanted.GetName(), present)
	if err == nil && found {
		err = checkOwner(workspace, configuration.GetKind(), present)
	}
	if err != nil {
		return false, err
	}
	applied := present.GetAnnotations()[appliedHashAnnotation]
	// The annotation alone proves nothing: anybody who may edit the object can write it, and take away the owner.
	if applied == hash && metav1.IsControlledBy(present, workspace) && unchanged() {
		return false, nil
	}
	if applied == "" {
		if err := r.takeOwnership(ctx, workspace, configuration); err != nil {
			return false, err
		}
	}
	what := fmt.Sprintf("apply %s %s", configuration.GetKind(), configuration.GetName())
	err = r.options.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(configuration), patch.FieldOwner, client.ForceOwnership)
	if err != nil {
		return false, fmt.Errorf("%s: %w", what, err)
	}
	if err := k8sruntime.DefaultUnstructuredConverter.FromUnstructured(configuration.Object, present); err != nil {
		return false, fmt.Errorf("%s: read the result: %w", what, err)
	}
	return true, nil
}

// applyConfiguration returns what is applied, with a hash of its content in an annotation, and that hash.
func applyConfiguration(wanted client.Object) (*unstructured.Unstructured, string, error) {
	configuration, err := podspec.ApplyConfiguration(wanted)
	if err != nil {
		return nil, "", err
	}
	content, err := json.Marshal(configuration.Object)
	if err != nil {
		return nil, "", fmt.Errorf("encode a %s: %w", configuration.GetKind(), err)
	}
	hash := podspec.ShortHash(content)
	return configuration, hash, unstructured.SetNestedField(configuration.Object, hash, "metadata", "annotations", appliedHashAnnotation)
}

// takeOwnership prepares an object that another program created, if there is one and it may be written: this controller becomes the field
// manager of what others applied, so that the apply removes what only they wanted, such as a container or a variable. It reads the object
// from the API server because the cache does not have an object without the labels of workspaces. It does not prevent that another client
// creates such an object a moment later: that client could just as well edit the object that this controller creates.
func (r *Runtime) takeOwnership(ctx context.Context, workspace *autov1alpha1.Workspace, wanted *unstructured.Unstructured) error {
	present := &metav1.PartialObjectMetadata{}
	present.SetGroupVersionKind(wanted.GroupVersionKind())
	what := fmt.Sprintf("take over %s %s", wanted.GetKind(), wanted.GetName())
	if err := r.options.APIReader.Get(ctx, client.ObjectKeyFromObject(wanted), present); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := checkOwner(workspace, wanted.GetKind(), present); err != nil {
		return err
	}
	if wanted.GetKind() == "StatefulSet" {
		if err := r.options.Client.Patch(ctx, present, client.RawPatch(types.MergePatchType, []byte(noUpdates)), patch.FieldOwner); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	before := present.DeepCopy()
	others := sets.New[string]()
	for i, entry := range present.ManagedFields {
		if entry.Manager != string(patch.FieldOwner) && entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == "" {
			// UpgradeManagedFields hands over only fields with the operation Update.
			present.ManagedFields[i].Operation = metav1.ManagedFieldsOperationUpdate
			others.Insert(entry.Manager)
		}
	}
	if others.Len() == 0 {
		return nil
	}
	if err := csaupgrade.UpgradeManagedFields(present, others, string(patch.FieldOwner)); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	change := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.options.Client.Patch(ctx, present, change, patch.FieldOwner); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// act carries out the decision and returns the status.
func (r *Runtime) act(ctx context.Context, t *tracker, workspace *autov1alpha1.Workspace, o *observation, d decision) (agentruntime.Status, error) {
	replacing := d.action == actionAnnounce || d.action == actionReplace || d.action == actionScaleDown
	t.announce(o.now, replacing)
	r.observeRollout(t, keyOf(workspace), o, d)
	// The workspace keeps its place in the rollout while its pod is replaced. It gives up the place when it needs no pod, when the pod is no
	// longer being replaced, or when the new pod is ready.
	waiting := o.pod != nil && o.agentIsOutdated() && o.statefulSetIsApplied() && !o.mayRoll
	if o.idle || o.pod != nil && o.pod.DeletionTimestamp == nil && !replacing && !waiting && (o.agentIsOutdated() || d.status.Ready) {
		r.rollout.end(keyOf(workspace))
	}
	log := r.options.Log.WithValues("workspace", keyOf(workspace))
	var err error
	switch d.action {
	case actionNone, actionAnnounce:
	case actionRetryCreation:
		log.V(1).Info("asking for another attempt to create the pod", "problem", d.status.Message)
		d.status.RetryAfter = t.retried(o.now)
		err = r.retryCreation(ctx, workspace, o)
	case actionReplace:
		log.Info("replacing the pod", "pod", o.pod.Name, "reason", d.status.Message)
		err = r.deletePod(ctx, o.pod)
	case actionScaleDown:
		log.Info("scaling down to no pod: there is nothing to do")
		o.desired.Spec.Replicas = new(int32)
		err = r.applyStatefulSet(ctx, t, workspace, o)
	case actionShortenGrace:
		log.Info("shortening the time that the pod has to end: its agent has nothing to do and did not get the signal", "pod", o.pod.Name)
		err = r.deletePod(ctx, o.pod, client.GracePeriodSeconds(shortGrace))
	}
	if err == nil || ctx.Err() != nil {
		return d.status, err
	}
	log.Info("cannot change the pod, trying again", "action", d.action, "problem", err.Error())
	return r.withoutAction(t, keyOf(workspace), o, d, err), nil
}

// withoutAction returns the status after the action failed. A pod that works still works when it may not be deleted.
func (r *Runtime) withoutAction(t *tracker, key types.NamespacedName, o *observation, d decision, failed error) agentruntime.Status {
	retry := conflictInterval
	if refusalStatus(failed) != nil {
		retry = rejectedInterval
	}
	status := d.status
	switch {
	case d.action == actionReplace && o.agentIsOutdated():
		// The pod may as well stay. The place among those that are replaced goes to another one.
		t.keptAt, t.announcedAt = o.now, time.Time{}
		r.rollout.end(key)
		status = explainPod(o)
		if o.agentRuns() {
			retry = keptInterval
		}
	case d.action == actionReplace:
		status.Failing = true
		status.Message += "; it cannot be deleted, trying again: " + quote(failed.Error())
	case d.action == actionScaleDown:
		status.Message += "; the StatefulSet cannot be scaled down, trying again: " + quote(failed.Error())
	case d.action == actionRetryCreation:
		// The StatefulSet controller tries again by itself, and the message says why it could not create the pod.
		return status
	}
	status.RetryAfter = retry
	return status
}

// retryCreation changes an annotation of the StatefulSet that has no other effect, so that the StatefulSet controller tries again.
func (r *Runtime) retryCreation(ctx context.Context, workspace *autov1alpha1.Workspace, o *observation) error {
	set := &metav1.PartialObjectMetadata{Namespace: workspace.Namespace, Name: o.statefulSet.Name}
	set.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("StatefulSet"))
	change := fmt.Appendf(nil, `{"metadata":{"uid":%q,"annotations":{%q:%q}}}`, o.statefulSet.UID, retryAnnotation, o.now.UTC().Format(time.RFC3339))
	err := r.options.Client.Patch(ctx, set, client.RawPatch(types.MergePatchType, change), patch.FieldOwner)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("ask for another attempt to create the pod: %w", err)
	}
	return nil
}

// deletePod deletes the pod, but no other pod of the same name.
func (r *Runtime) deletePod(ctx context.Context, pod *corev1.Pod, options ...client.DeleteOption) error {
	err := r.options.Client.Delete(ctx, pod, append(options, client.Preconditions{UID: &pod.UID})...)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s: %w", pod.Name, err)
	}
	return nil
}
