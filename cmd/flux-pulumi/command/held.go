package command

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// hold is why a Stack does not get what its source offers.
type hold struct {
	waves.Verdict
	// revision is what the source offers.
	revision string
	// rollout is what the Stack waits for; nil when the StackRollout that it names does not exist, or does not admit it.
	rollout *autov1alpha1.StackRollout
	// wave is the index of the wave that the Stack is in; negative when that is not known.
	wave int
}

// holdOf returns why the Stack does not get what its source offers, decided as the controller does; nil when it does. The source has been read; it is nil
// when the Stack has none. A Stack that is suspended waits for nobody.
func (f *finder) holdOf(stack *pulumiv1.Stack, source *unstructured.Unstructured) (*hold, error) {
	key, named := waves.RolloutOf(stack)
	if !named || source == nil || stack.Spec.Suspend {
		return nil, nil
	}
	revision, _, _ := unstructured.NestedString(source.Object, "status", "artifact", "revision")
	digest, _, _ := unstructured.NestedString(source.Object, "status", "artifact", "digest")
	if revision == "" {
		return nil, nil
	}
	var rollout *autov1alpha1.StackRollout
	switch found, err := f.find(key, &autov1alpha1.StackRollout{}); {
	case err == nil:
		rollout = found.(*autov1alpha1.StackRollout)
		if _, err := waves.Admits(rollout, stack.Namespace, f); err != nil {
			return nil, fmt.Errorf("whether StackRollout %s admits the Stack: %w", key, err)
		}
	case !apierrors.IsNotFound(err):
		return nil, err
	}
	verdict := waves.Release(stack, rollout, autov1alpha1.RolloutRevision{Revision: revision, Digest: digest}, digest, f)
	if verdict.Released {
		return nil, nil
	}
	held := &hold{Verdict: verdict, revision: revision, wave: -1}
	if verdict.Reason == pulumiv1.WaveNotOpenReason && !verdict.Refused {
		held.rollout, held.wave = rollout, f.waveOf(stack, rollout)
	}
	return held, nil
}

// waveOf returns the index of the wave of the StackRollout that the Stack is in; -1 when the last decision was made for other waves.
func (f *finder) waveOf(stack *pulumiv1.Stack, rollout *autov1alpha1.StackRollout) int {
	all, status := rollout.Spec.Waves, &rollout.Status
	if status.Target == nil || len(status.Waves) != len(all) {
		return -1
	}
	bounds := make([]waves.Bound, len(all))
	for i := range all {
		decided := &status.Waves[i]
		bounds[i] = waves.Bound{Place: decided.Order, Kept: true}
		if decided.Name != all[i].Name || all[i].Limit != nil && (decided.Order == nil || decided.Limit != all[i].Limit.String()) {
			return -1
		}
	}
	member := &waves.Member{UID: stack.UID, Labels: stack.Labels}
	if waves.SelectsByNamespace(all) {
		found, err := f.Labels(stack.Namespace)
		if err != nil {
			return -1
		}
		member.NamespaceLabels = found
	}
	if waves.Assign([]*waves.Member{member}, all, cmp.Or(status.Target.Digest, status.Target.Revision), bounds) != nil {
		return -1 // the StackRollout says what is wrong with its selectors
	}
	return member.Wave
}

// String returns a sentence about what waits, and for which wave.
func (h *hold) String() string {
	if h.wave < 0 {
		return short(h.revision) + " is held: " + h.Message
	}
	wave := &h.rollout.Status.Waves[h.wave]
	return fmt.Sprintf("%s waits for wave %s (%d of %d, %s waiting) of StackRollout %s; %s have it", short(h.revision), wave.Name,
		h.wave+1, len(h.rollout.Status.Waves), count(int(wave.Waiting)), client.ObjectKeyFromObject(h.rollout), h.rollout.Status.Done)
}

// brief is what String says in a few words.
func (h *hold) brief() string {
	switch {
	case h.Refused:
		return "StackNotInRollout" // as the event of the StackRollout
	case h.wave < 0:
		return h.Reason
	}
	open := slices.IndexFunc(h.rollout.Spec.Waves, func(wave autov1alpha1.RolloutWave) bool { return wave.Name == h.rollout.Status.Wave })
	text := "wave " + h.rollout.Spec.Waves[h.wave].Name
	if open >= 0 && open < h.wave {
		text += ", after " + h.rollout.Status.Wave
	}
	return text + ": " + conditions.GetReason(h.rollout, meta.ReadyCondition)
}

// whyHeld returns in a few words why the Stack is held; empty when it is not.
func (f *finder) whyHeld(stack *pulumiv1.Stack) string {
	reason := conditions.GetReason(stack, pulumiv1.HeldCondition) // windows hold Stacks, too; and the user may not be allowed to see the rest
	if _, named := waves.RolloutOf(stack); !named {
		return reason
	}
	source := f.sourceOf(stack)
	if source != nil {
		found, err := f.find(client.ObjectKeyFromObject(source), source)
		if err != nil {
			return cmp.Or(reason, "unknown")
		}
		source = found.(*unstructured.Unstructured)
	}
	held, err := f.holdOf(stack, source)
	switch byWaves := reason == pulumiv1.WaveNotOpenReason || reason == pulumiv1.RolloutNotFoundReason; {
	case err != nil:
		return cmp.Or(reason, "unknown")
	case held != nil:
		return held.brief()
	case byWaves && source != nil:
		return "" // it was released since
	}
	return reason
}

// finder finds the objects on which the text about a Stack depends, and reads each of them once.
type finder struct {
	*cluster
	ctx context.Context
	// lists is true for the text about many Stacks: then all objects of a kind in a namespace, or with everywhere in all, are read at once.
	lists, everywhere bool
	known             map[scope]found
}

// scope is what is read at once: one object, or those of a kind in one or all namespaces.
type scope struct {
	schema.GroupVersionKind
	client.ObjectKey
}

// found is what was read of a scope.
type found struct {
	objects map[client.ObjectKey]client.Object
	err     error
}

// find returns the object of the kind of into, which it may overwrite.
func (f *finder) find(key client.ObjectKey, into client.Object) (client.Object, error) {
	kind, err := f.client.GroupVersionKindFor(into)
	if err != nil {
		return nil, fmt.Errorf("find the kind of %s: %w", key, err)
	}
	in := scope{kind, key}
	switch {
	case f.lists && f.everywhere:
		in.ObjectKey = client.ObjectKey{}
	case f.lists && key.Namespace != "": // who may read a Namespace need not be allowed to list them
		in.Name = ""
	}
	read, isKnown := f.known[in]
	if !isKnown {
		if in.Name != "" {
			read = found{map[client.ObjectKey]client.Object{key: into}, f.read(f.ctx, key, into)}
		} else {
			read.objects, read.err = f.listAll(in)
		}
		if f.known == nil {
			f.known = map[scope]found{}
		}
		f.known[in] = read
	}
	if object := read.objects[key]; object != nil || read.err != nil {
		return object, read.err
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, key.Name)
}

func (f *finder) listAll(in scope) (map[client.ObjectKey]client.Object, error) {
	kind := in.GroupVersion().WithKind(in.Kind + "List")
	list := client.ObjectList(&unstructured.UnstructuredList{})
	if typed, err := f.client.Scheme().New(kind); err == nil && kind.GroupVersion() == autov1alpha1.GroupVersion {
		list = typed.(client.ObjectList)
	}
	list.GetObjectKind().SetGroupVersionKind(kind)
	if err := f.list(f.ctx, list, client.InNamespace(in.Namespace)); err != nil {
		return nil, err
	}
	objects := map[client.ObjectKey]client.Object{}
	return objects, apimeta.EachListItem(list, func(item runtime.Object) error {
		object := item.(client.Object)
		objects[client.ObjectKeyFromObject(object)] = object
		return nil
	})
}

// Labels implements waves.Namespaces.
func (f *finder) Labels(name string) (map[string]string, error) {
	namespace, err := f.find(client.ObjectKey{Name: name}, &corev1.Namespace{})
	if err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return namespace.GetLabels(), nil
}
