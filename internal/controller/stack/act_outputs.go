package stack

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/outputobject"
	"github.com/stack-controller/stack-controller/internal/references"
)

const (
	// maxOutputProblems is how many objects a message names that could not be written.
	maxOutputProblems = 3
	// maxGrant is how many bytes the Role and its binding may have in a message.
	maxGrant = 2 << 10
)

// observeOutputs finds the objects of spec.outputs that are not as they were written, and whether the outputs that another Stack waits for are
// still stored. It sends no request unless one waits: nothing watches the Secrets with the outputs.
func (r *Reconciler) observeOutputs(ctx context.Context, o *observation) error {
	if written := o.stack.Status.OutputObjects; written != nil {
		for _, object := range written.Objects {
			known, current, err := r.References.Version(ctx, keyOfOutput(o.stack, &object), labelsOfOutput(o.stack, &object))
			if err != nil {
				return err
			}
			switch {
			case known && current == versionOfOutput(o.stack, &object):
				o.outputs.intact = append(o.outputs.intact, object)
			case known:
				o.outputs.edited = append(o.outputs.edited, object)
			}
		}
	}
	if !o.outputs.awaited || o.update != nil || o.outputs.source == nil {
		return nil
	}
	var err error
	o.outputs.lost, err = r.areGone(ctx, o.stack.Namespace, o.outputs.source)
	return err
}

// areGone reports whether the Secret with the outputs no longer exists.
func (r *Reconciler) areGone(ctx context.Context, namespace string, stored *pulumiv1.StoredOutputs) (bool, error) {
	if stored.Secret == "" {
		return false, nil // there were none
	}
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: stored.Secret}, secret)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("look at the stored outputs: %w", err)
	}
	return err != nil || !isOfUpdate(secret, stored.UID), nil
}

func keyOfOutput(stack *pulumiv1.Stack, object *pulumiv1.WrittenOutputObject) references.Key {
	return references.Key{Kind: references.Kind(object.Kind), Namespace: stack.Namespace, Name: object.Name}
}

// versionOfOutput returns the id of the version that was written.
func versionOfOutput(stack *pulumiv1.Stack, object *pulumiv1.WrittenOutputObject) string {
	return references.VersionOf(references.Kind(object.Kind), &metav1.ObjectMeta{
		Namespace: stack.Namespace, Name: object.Name, UID: object.UID, ResourceVersion: object.ResourceVersion,
	}).ID
}

// labelsOfOutput returns the labels by which the object is watched or not.
func labelsOfOutput(stack *pulumiv1.Stack, object *pulumiv1.WrittenOutputObject) map[string]string {
	for i := range stack.Spec.Outputs {
		if wanted := &stack.Spec.Outputs[i]; wanted.Name == object.Name && cmp.Or(wanted.Kind, pulumiv1.OutputSecret) == object.Kind {
			return outputobject.Labels(stack, wanted.Labels)
		}
	}
	return outputobject.Labels(stack, nil)
}

// writeOutputs writes the objects of spec.outputs, and removes those that are no longer there. Objects that cannot be written stay as they
// are, and the others are written.
func (r *Reconciler) writeOutputs(ctx context.Context, o *observation) error {
	o.outputs.tried = true
	stack, before := o.stack, o.stack.Status.OutputObjects
	status := &pulumiv1.OutputObjectsStatus{}
	var problems []*outputProblem
	if len(stack.Spec.Outputs) > 0 {
		source := o.outputs.source
		status.Update, status.UID = source.Update, source.UID
		values, err := r.outputValues(ctx, o)
		if err != nil {
			return err
		}
		if o.outputs.lost {
			return nil // another update will have them, see needsOutputs
		}
		table := newOutputTable(values)
		for i := range stack.Spec.Outputs {
			written, problem := r.writeOutput(ctx, o, table, &stack.Spec.Outputs[i])
			if problem != nil {
				problems = append(problems, problem)
			}
			if written != nil {
				status.Objects = append(status.Objects, *written)
			}
		}
	}
	kept, removal := r.removeOutputs(ctx, stack, before, status)
	status.Objects = append(status.Objects, kept...)
	r.recallOutputs(stack).trim(status.Objects)
	if removal != nil {
		problems = append(problems, removal)
	}
	if len(problems) == 0 {
		status.SpecDigest = outputsDigest(stack)
		o.outputs.edited = nil
	}
	if stack.Status.OutputObjects = status; len(stack.Spec.Outputs) == 0 && len(status.Objects) == 0 {
		stack.Status.OutputObjects = nil
	}
	o.outputs.problem = r.summarize(ctx, stack, problems)
	return nil
}

// outputValues reads the Secret with the outputs, unless it was read already; nil when the stack has none.
func (r *Reconciler) outputValues(ctx context.Context, o *observation) (*corev1.Secret, error) {
	source := o.outputs.source
	if o.outputs.values != nil || source.Secret == "" {
		return o.outputs.values, nil
	}
	secret, err := r.readOutputsOf(ctx, o.stack.Namespace, source)
	if err != nil {
		return nil, err
	}
	if secret == nil || !isOfUpdate(secret, source.UID) {
		o.outputs.lost = true
	}
	return secret, nil
}

// isOfUpdate reports whether the Update owns the Secret. Whoever may create Secrets can give one the name of another.
func isOfUpdate(secret metav1.Object, update types.UID) bool {
	owner := metav1.GetControllerOf(secret)
	return owner != nil && owner.UID == update
}

// writeOutput writes one object, unless it is known to have all that is wanted. It returns what the status says about it from now on; nil when there is nothing to say.
func (r *Reconciler) writeOutput(
	ctx context.Context, o *observation, table *outputTable, wanted *pulumiv1.OutputObject,
) (*pulumiv1.WrittenOutputObject, *outputProblem) {
	stack := o.stack
	known := writtenObject(stack.Status.OutputObjects, wanted.Kind, wanted.Name)
	object, problem := table.render(stack, wanted)
	if problem != nil {
		return known, problem
	}
	if known != nil && !slices.Contains(o.outputs.edited, *known) {
		// One that is not watched is written once with the outputs of each update, also while another object is tried again.
		intact := slices.Contains(o.outputs.intact, *known)
		if wrote, by := r.recallOutputs(stack).has(object); wrote && (intact || by == o.outputs.source.UID) {
			return known, nil
		}
	}
	version := outputobject.Version{}
	if known != nil {
		version.UID = known.UID
	}
	version, err := r.Outputs.Write(ctx, stack, object, version)
	if foreign, isForeign := errors.AsType[*outputobject.ForeignError](err); isForeign && foreign.Earlier != "" {
		version, err = r.takeOverOutput(ctx, stack, object, foreign)
	}
	if err != nil {
		return known, problemOfWrite(stack, err)
	}
	r.recallOutputs(stack).keep(object, o.outputs.source.UID)
	return &pulumiv1.WrittenOutputObject{
		Kind: object.Kind, Name: object.Name, UID: version.UID, ResourceVersion: version.ResourceVersion, DeletionPolicy: wanted.DeletionPolicy,
	}, nil
}

// takeOverOutput writes an object that an earlier Stack of this name has created, unless that Stack exists: its annotation can be forged. A Stack
// that was restored from a backup, or deleted and created again, has another UID.
func (r *Reconciler) takeOverOutput(
	ctx context.Context, stack *pulumiv1.Stack, object *outputobject.Object, foreign *outputobject.ForeignError,
) (outputobject.Version, error) {
	exists, err := r.hasStack(ctx, stack.Namespace, foreign.Earlier)
	if err != nil {
		return outputobject.Version{}, err
	}
	if exists {
		return outputobject.Version{}, foreign
	}
	return r.Outputs.Write(ctx, stack, object, outputobject.Version{UID: foreign.UID})
}

// hasStack reports whether the namespace has a Stack with the UID. The cache may lack the Stacks of other shards.
func (r *Reconciler) hasStack(ctx context.Context, namespace string, uid types.UID) (found bool, err error) {
	var known pulumiv1.StackList
	if err := r.List(ctx, &known, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("look for the stack %s: %w", uid, err)
	}
	found = slices.ContainsFunc(known.Items, func(stack pulumiv1.Stack) bool { return stack.UID == uid })
	if found || r.Shard == nil {
		return found, nil
	}
	all := func() client.ObjectList {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(pulumiv1.GroupVersion.WithKind(pulumiv1.StackKind + "List"))
		return list
	}
	err = r.listLive(ctx, all, func(page client.ObjectList) {
		found = found || slices.ContainsFunc(page.(*metav1.PartialObjectMetadataList).Items, func(stack metav1.PartialObjectMetadata) bool { return stack.UID == uid })
	}, client.InNamespace(namespace))
	if err != nil {
		return false, fmt.Errorf("look for the stack %s: %w", uid, err)
	}
	return found, nil
}

// removeOutputs deletes the objects that were written before and are no longer asked for. It returns those that it could not delete.
func (r *Reconciler) removeOutputs(
	ctx context.Context, stack *pulumiv1.Stack, before, now *pulumiv1.OutputObjectsStatus,
) (kept []pulumiv1.WrittenOutputObject, problem *outputProblem) {
	if before == nil {
		return nil, nil
	}
	for _, object := range before.Objects {
		isWanted := slices.ContainsFunc(stack.Spec.Outputs, func(wanted pulumiv1.OutputObject) bool {
			return wanted.Name == object.Name && cmp.Or(wanted.Kind, pulumiv1.OutputSecret) == object.Kind
		})
		if isWanted || object.DeletionPolicy == pulumiv1.OutputRetain || writtenObject(now, object.Kind, object.Name) != nil {
			continue
		}
		key := client.ObjectKey{Namespace: stack.Namespace, Name: object.Name}
		if err := r.Outputs.Remove(ctx, object.Kind, key, object.UID); err != nil {
			kept, problem = append(kept, object), problemOfWrite(stack, err)
		}
	}
	return kept, problem
}

// problemOfWrite returns the problem that an error of the Writer is.
func problemOfWrite(stack *pulumiv1.Stack, err error) *outputProblem {
	if foreign, isForeign := errors.AsType[*outputobject.ForeignError](err); isForeign {
		advice := "delete it, or use another name"
		if foreign.Unnamed {
			advice = fmt.Sprintf("if an earlier Stack %s has left it, set its label %s to %s, otherwise %s", stack.Name, pulumiv1.StackUIDLabel, stack.UID, advice)
		}
		return &outputProblem{reason: pulumiv1.OutputsConflictReason, message: foreign.Error() + ", and is not changed: " + advice}
	}
	problem := &outputProblem{reason: pulumiv1.OutputsNotWrittenReason, message: err.Error(), passes: true}
	if _, forbidden := errors.AsType[*outputobject.ForbiddenError](err); forbidden {
		problem.passes = false
	}
	if _, invalid := errors.AsType[*outputobject.InvalidError](err); invalid {
		problem.passes = false
	}
	return problem
}

// summarize returns one problem for all: the first that does not pass by itself, with the messages of those with the same reason.
func (r *Reconciler) summarize(ctx context.Context, stack *pulumiv1.Stack, problems []*outputProblem) *outputProblem {
	if len(problems) == 0 {
		return nil
	}
	slices.SortStableFunc(problems, func(a, b *outputProblem) int {
		switch {
		case a.passes == b.passes:
			return 0
		case a.passes:
			return 1
		}
		return -1
	})
	first, left := problems[0], 0
	var messages []string
	for _, problem := range problems {
		switch {
		case problem.reason != first.reason || slices.Contains(messages, problem.message):
		case len(messages) == maxOutputProblems:
			left++
		default:
			messages = append(messages, problem.message)
		}
	}
	message := "the outputs are not written: " + strings.Join(messages, "; ")
	if left > 0 {
		message += fmt.Sprintf("; and %d more", left)
	}
	if first.reason == pulumiv1.OutputsNotWrittenReason && !first.passes && strings.Contains(message, "cannot ") {
		message += ". " + r.grantOutputs(ctx, stack)
	}
	return &outputProblem{reason: first.reason, message: message, passes: first.passes}
}

// grantOutputs says how to give the controller the rights to write the objects of spec.outputs.
func (r *Reconciler) grantOutputs(ctx context.Context, stack *pulumiv1.Stack) string {
	advice := fmt.Sprintf("Grant them: flux-pulumi outputs grant %s -n %s | kubectl apply -f -", stack.Name, stack.Namespace)
	controller, err := r.Outputs.Identity(ctx)
	if err != nil {
		return advice
	}
	role, binding := outputobject.Grant(stack, outputobject.Names(stack), controller)
	rights, err := json.Marshal(role)
	bound, bindingErr := json.Marshal(binding)
	if err != nil || bindingErr != nil || len(rights)+len(bound) > maxGrant {
		return advice
	}
	return fmt.Sprintf("%s, or apply: %s and %s", advice, rights, bound)
}

// rememberedOutputs has digests of the objects with outputs of one Stack, so that equal outputs are not written again. The key exists only in
// this process, and the digests nowhere else.
type rememberedOutputs struct {
	mu      sync.Mutex
	stack   types.UID
	objects map[string]rememberedOutput
}

// rememberedOutput is an object as it was written, with the outputs of the Update with that UID.
type rememberedOutput struct {
	digest [sha256.Size]byte
	update types.UID
}

// outputsKey is the key of these digests.
var outputsKey = sync.OnceValue(func() []byte {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // never fails
	return key
})

// recallOutputs returns what is remembered about the objects of the Stack.
func (r *Reconciler) recallOutputs(stack *pulumiv1.Stack) *rememberedOutputs {
	key := client.ObjectKeyFromObject(stack)
	known, _ := r.writtenOutputs.LoadOrStore(key, &rememberedOutputs{stack: stack.UID, objects: map[string]rememberedOutput{}})
	if remembered := known.(*rememberedOutputs); remembered.stack == stack.UID {
		return remembered
	}
	remembered := &rememberedOutputs{stack: stack.UID, objects: map[string]rememberedOutput{}}
	r.writtenOutputs.Store(key, remembered)
	return remembered
}

// digest returns the name of an object and a digest of all that is wanted of it.
func (m *rememberedOutputs) digest(object *outputobject.Object) (name string, digest [sha256.Size]byte) {
	mac := hmac.New(sha256.New, outputsKey())
	_ = json.NewEncoder(mac).Encode(object) // it has only texts, and a hash takes all
	return nameOfObject(object.Kind, object.Name), [sha256.Size]byte(mac.Sum(nil))
}

// has reports whether the object was written just so, and with the outputs of which Update.
func (m *rememberedOutputs) has(object *outputobject.Object) (bool, types.UID) {
	name, digest := m.digest(object)
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.objects[name]
	return known.digest == digest, known.update
}

func (m *rememberedOutputs) keep(object *outputobject.Object, update types.UID) {
	name, digest := m.digest(object)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects[name] = rememberedOutput{digest: digest, update: update}
}

// trim forgets the objects that are no longer among those written: a Stack can name others for ever.
func (m *rememberedOutputs) trim(written []pulumiv1.WrittenOutputObject) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.objects, func(name string, _ rememberedOutput) bool {
		return !slices.ContainsFunc(written, func(object pulumiv1.WrittenOutputObject) bool { return name == nameOfObject(object.Kind, object.Name) })
	})
}

// nameOfObject is the name of an object with outputs among those of its Stack.
func nameOfObject(kind pulumiv1.OutputObjectKind, name string) string {
	return string(kind) + "/" + name
}
