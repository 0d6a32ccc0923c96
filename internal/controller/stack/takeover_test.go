package stack

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/shard"
)

// shardKey is the label that decides on the shard in these tests.
const shardKey = "sharding.fluxcd.io/key"

// shards is the API server of several shards with one Workspace and at most one Update. Its reader is not limited to a shard.
type shards struct {
	client.Client
	workspace *autov1alpha1.Workspace
	update    *autov1alpha1.Update
	// refusal is the answer to a change of labels. keeps makes the API server accept the change, and keep the labels.
	refusal error
	keeps   bool
	changed []string
}

// Get implements client.Reader.
func (s *shards) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	switch object := object.(type) {
	case *autov1alpha1.Workspace:
		s.workspace.DeepCopyInto(object)
	case *autov1alpha1.Update:
		if s.update == nil {
			return apierrors.NewNotFound(schema.GroupResource{}, "")
		}
		s.update.DeepCopyInto(object)
	default:
		return errors.ErrUnsupported
	}
	return nil
}

// List implements client.Reader: other objects do not matter.
func (s *shards) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// GroupVersionKindFor implements client.Client.
func (s *shards) GroupVersionKindFor(object k8sruntime.Object) (schema.GroupVersionKind, error) {
	kind := autov1alpha1.UpdateKind
	if _, ok := object.(*autov1alpha1.Workspace); ok {
		kind = autov1alpha1.WorkspaceKind
	}
	return autov1alpha1.GroupVersion.WithKind(kind), nil
}

// Patch implements client.Writer for changes of labels.
func (s *shards) Patch(_ context.Context, object client.Object, _ client.Patch, _ ...client.PatchOption) error {
	if s.refusal != nil {
		return s.refusal
	}
	s.changed = append(s.changed, object.(*metav1.PartialObjectMetadata).Kind+" "+object.GetName()+" to "+object.GetLabels()[shardKey])
	if s.keeps {
		object.SetLabels(map[string]string{shardKey: "two"})
	}
	return nil
}

// ownCache is the cache of the first shard.
type ownCache struct {
	*shards
	own *shard.Shard
}

// Get implements client.Reader.
func (c ownCache) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if err := c.shards.Get(ctx, key, object, options...); err != nil || c.own.Has(object) {
		return err
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

// inShards returns a Stack of the first shard, with an Update that runs, and its controller. The Workspace and the Update have the labels of other shards.
func inShards(workspace, update string) (*pulumiv1.Stack, *shards, *Reconciler) {
	o := updating()
	stack := o.stack
	stack.Labels = map[string]string{shardKey: "one"}
	o.update.UID, o.update.OwnerReferences = "current", ownedBy(stack)
	o.update.Labels, o.update.Status.StartTime = map[string]string{shardKey: update}, new(ago(time.Second))
	stack.Status.CurrentUpdate.UID = o.update.UID
	server := &shards{update: o.update, workspace: &autov1alpha1.Workspace{Namespace: stack.Namespace, Name: stack.Name,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(stack, pulumiv1.GroupVersion.WithKind(pulumiv1.StackKind))},
		Labels:          map[string]string{shardKey: workspace}}}
	own := shard.New(labels.SelectorFromSet(stack.Labels))
	return stack, server, &Reconciler{Client: ownCache{server, own}, APIReader: server, Shard: own, WaitInterval: time.Minute}
}

func TestAnUpdateWhoseLabelsWereChangedComesBackToTheShardOfItsStack(t *testing.T) {
	g := NewWithT(t)
	stack, server, r := inShards("one", "two")
	before := stack.Status.DeepCopy()
	result, err := r.reconcile(t.Context(), stack)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(server.changed).To(HaveExactElements("Update app-2 to one"))
	g.Expect(result.after).To(Equal(outdatedInterval))
	g.Expect(&stack.Status).To(Equal(before))
}

func TestATakeOverThatIsNotAcceptedIsShown(t *testing.T) {
	denied := apierrors.NewForbidden(schema.GroupResource{}, "app", errors.New("labels are pinned"))
	for name, test := range map[string]struct {
		workspace, update string
		refusal           error
		keeps             bool
		says              string
	}{
		"a policy denies that of the Workspace": {"two", "", denied, false, "take over the workspace app from another shard: "},
		"a policy denies that of the Update":    {"one", "two", denied, false, "take over the update app-2 from another shard: "},
		"a policy sets the labels":              {"two", "", nil, true, "something changes its labels back"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			stack, server, r := inShards(test.workspace, test.update)
			server.refusal, server.keeps = test.refusal, test.keeps
			result, err := r.reconcile(t.Context(), stack)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(conditions.GetReason(stack, meta.StalledCondition)).To(Equal(pulumiv1.WorkspaceFailedReason))
			g.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(ContainSubstring(test.says))
			g.Expect(result.after).To(Equal(r.WaitInterval), "it is tried again")
			g.Expect(stack.Status.CurrentUpdate).NotTo(BeNil())
		})
	}
}
