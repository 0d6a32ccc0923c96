package stack

import (
	"context"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/controller/hashkey"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/references"
)

// takes makes the Stack one with the inputs.
func takes(list ...autov1alpha1.Input) func(*pulumiv1.Stack) {
	return func(stack *pulumiv1.Stack) { stack.Spec.Inputs = list }
}

// output is an input with the key, from an output of a Stack in the same namespace.
func output(key, stack, name string) autov1alpha1.Input {
	return autov1alpha1.Input{Key: key, Stack: &autov1alpha1.StackOutput{Name: stack, Output: name}}
}

// take ends the update of the Stack that is in progress, which has read the inputs as they are now, and waits until the result is recorded.
func (s *fixture) take(stack *pulumiv1.Stack) {
	s.t.Helper()
	s.await(stack, working)
	s.Expect(s.client.Get(s.t.Context(), client.ObjectKeyFromObject(stack), stack)).To(Succeed())
	workspace := &autov1alpha1.Workspace{}
	s.Expect(s.client.Get(s.t.Context(), client.ObjectKeyFromObject(stack), workspace)).To(Succeed())
	reader := &inputs.Reader{APIReader: s.client, Namespace: s.namespace, Watcher: s.references, Scope: references.Scope{OtherNamespaces: true}, Stacks: func(ctx context.Context, name types.NamespacedName) (*pulumiv1.Stack, error) {
		giver := &pulumiv1.Stack{}
		return giver, s.client.Get(ctx, name, giver)
	}}
	var items []*agentpb.ConfigItem
	for i := range stack.Spec.Inputs {
		item, err := reader.Item(s.t.Context(), &stack.Spec.Inputs[i])
		s.Expect(err).NotTo(HaveOccurred())
		items = append(items, item)
	}
	key, err := hashkey.Keys{APIReader: s.client, Writer: s.client}.Of(s.t.Context(), workspace)
	s.Expect(err).NotTo(HaveOccurred())
	s.setUpdate(stack, func(update *autov1alpha1.Update) {
		started(update)
		update.Status.InputValuesDigest = inputs.Digest(inputs.ValueIDs(key, items))
		update.Status.InputVersionsDigest = references.Digest(reader.Versions(inputs.KeysOf(s.namespace, stack.Spec.Inputs)))
		conditions.MarkFalse(update, autov1alpha1.UpdateProgressing, "Complete", "done")
		succeeded(update)
	})
	s.await(stack, func(stack *pulumiv1.Stack) bool {
		return conditions.IsReady(stack) && stack.Status.CurrentUpdate == nil
	})
}

// readsOf returns how often the controller has read the Secrets or ConfigMaps with this in their names.
func (s *fixture) readsOf(name string) (count int) {
	for _, request := range s.valuesRead() {
		if strings.HasPrefix(request, http.MethodGet) && strings.Contains(request, name) {
			count++
		}
	}
	return count
}

// message returns the message of the Update in progress.
func (s *fixture) message() string { return *s.awaitUnfinishedUpdate().Spec.Message }

func TestOnlyAnotherValueOfAnInputIsAReasonForAnUpdate(t *testing.T) {
	s := newFixture(t)
	settings := &corev1.ConfigMap{Namespace: s.namespace, Name: "settings", Labels: watchedLabels, Data: map[string]string{"size": "1", "color": "red"}}
	s.Expect(s.client.Create(t.Context(), settings)).To(Succeed())
	network := s.dependent("network")
	user := s.dependent("app", takes(output("network:vpcId", "network", "vpcId"), autov1alpha1.Input{
		Key: "size", ConfigMap: &autov1alpha1.KeyReference{Name: "settings", Key: "size"},
	}))
	s.await(user, notUpdated(pulumiv1.DependencyNotReadyReason, "/network is not ready"))
	s.give(network, networkOutputs, "token")
	s.take(user)
	s.Expect(user.Status.LastUpdate.InputValuesDigest).To(MatchRegexp(`^[0-9a-f]{12},[0-9a-f]{12}$`))

	// Another output of the Stack, and another key of the ConfigMap.
	other := maps.Clone(networkOutputs)
	other["token"] = `"another"`
	versions := user.Status.LastUpdate.InputVersionsDigest
	s.request(network)
	s.give(network, other, "token")
	settings.Data["color"] = "blue"
	s.Expect(s.client.Update(t.Context(), settings)).To(Succeed())
	s.await(user, func(stack *pulumiv1.Stack) bool { return stack.Status.LastUpdate.InputVersionsDigest != versions })
	s.Consistently(func() *pulumiv1.CurrentStackUpdate {
		s.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(user), user)).To(Succeed())
		return user.Status.CurrentUpdate
	}, "500ms").Should(BeNil())
	s.Expect(conditions.IsReady(user)).To(BeTrue())
	before := s.readsOf(autov1alpha1.OutputsSecretSuffix)
	s.request(user)
	s.take(user)
	s.Expect(s.readsOf(autov1alpha1.OutputsSecretSuffix)).To(Equal(before), "what is unchanged is not read again")

	// The value that is used.
	other["vpcId"] = `"vpc-2"`
	s.request(network)
	s.give(network, other, "token")
	s.await(user, working)
	s.Expect(s.message()).To(Equal("Input network:vpcId changed"))
	s.Expect(s.readsOf("settings")).To(Equal(1), "only the change of its color was looked at")
	s.take(user)
	settings.Data["size"] = "2"
	s.Expect(s.client.Update(t.Context(), settings)).To(Succeed())
	s.await(user, working)
	s.Expect(s.message()).To(Equal("Input size changed"))
	s.take(user)

	// An output that is gone is no reason for an update: what was deployed stays as it is.
	delete(other, "vpcId")
	s.request(network)
	s.give(network, other, "token")
	s.Consistently(func() *pulumiv1.CurrentStackUpdate {
		s.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(user), user)).To(Succeed())
		return user.Status.CurrentUpdate
	}, "500ms").Should(BeNil())
	s.Expect(conditions.IsReady(user)).To(BeTrue())
}

// A controller that ends, or cannot write a status, right after an agent has started an operation does not record what the inputs were.
func TestInputsAreComparedAfterAnUpdateThatDidNotRecordThem(t *testing.T) {
	s := newFixture(t)
	network := s.dependent("network")
	s.give(network, networkOutputs, "token")
	user := s.dependent("app", takes(output("network:vpcId", "network", "vpcId")))
	s.await(user, working)
	first := user.Status.CurrentUpdate.Name
	s.setUpdate(user, func(update *autov1alpha1.Update) { started(update); succeeded(update) })
	s.await(user, func(stack *pulumiv1.Stack) bool {
		return stack.Status.CurrentUpdate != nil && stack.Status.CurrentUpdate.Name != first
	})
	s.Expect(s.message()).To(Equal("The inputs of the last update are not known"))
	s.setUpdate(user, func(update *autov1alpha1.Update) { started(update); succeeded(update) })
	s.await(user, func(stack *pulumiv1.Stack) bool {
		return stack.Status.CurrentUpdate == nil && conditions.IsReady(stack)
	})
	known := user.Status.LastUpdate.InputValuesDigest
	s.Expect(known).NotTo(BeEmpty())

	s.request(user)
	s.await(user, working)
	s.setUpdate(user, func(update *autov1alpha1.Update) { started(update); succeeded(update) })
	s.await(user, func(stack *pulumiv1.Stack) bool {
		return stack.Status.CurrentUpdate == nil && conditions.IsReady(stack)
	})
	s.Expect(user.Status.LastUpdate.InputValuesDigest).To(Equal(known), "what is known is kept")
	updates := len(s.updates())
	other := maps.Clone(networkOutputs)
	other["vpcId"] = `"vpc-2"`
	s.request(network)
	s.give(network, other, "token")
	s.await(user, working)
	s.Expect(s.message()).To(Equal("Input network:vpcId changed"))
	s.Expect(s.updates()).To(HaveLen(updates + 2))
}

// A Secret may be gone for a moment, while its owner makes it anew.
func TestInputsAreComparedWhenAllOfThemCanBeReadAgain(t *testing.T) {
	s := newFixture(t, func(r *Reconciler) { r.WaitInterval = 200 * time.Millisecond })
	network := s.dependent("network")
	s.give(network, networkOutputs, "token")
	secret := s.newSecret("unwatched", nil)
	user := s.dependent("app", takes(output("network:vpcId", "network", "vpcId"), autov1alpha1.Input{
		Key: "key", Secret: &autov1alpha1.KeyReference{Name: secret.Name, Key: "k"},
	}))
	s.await(user, working)
	first := user.Status.CurrentUpdate.Name
	s.Expect(s.client.Delete(t.Context(), secret)).To(Succeed())
	s.setUpdate(user, func(update *autov1alpha1.Update) { started(update); succeeded(update) })
	s.await(user, func(stack *pulumiv1.Stack) bool {
		return stack.Status.CurrentUpdate == nil && conditions.IsReady(stack)
	})
	s.Expect(user.Status.LastUpdate.Name).To(Equal(first))
	s.Consistently(func() *pulumiv1.CurrentStackUpdate {
		s.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(user), user)).To(Succeed())
		return user.Status.CurrentUpdate
	}, "500ms").Should(BeNil(), "what cannot be read is no reason for an update")
	s.newSecret("unwatched", nil)
	s.await(user, working)
	s.Expect(s.message()).To(Equal("The inputs of the last update are not known"))
}

func TestInputWithADefaultNeedsNoStackUntilThereIsOne(t *testing.T) {
	s := newFixture(t)
	input := output("network:vpcId", "network", "vpcId")
	input.Default = &apiextensionsv1.JSON{Raw: []byte(`"none"`)}
	user := s.dependent("app", takes(input))
	workspace := &autov1alpha1.Workspace{}
	s.await(user, working)
	s.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(user), workspace)).To(Succeed())
	s.Expect(workspace.Spec.Stacks[0].Inputs).To(HaveLen(1))
	key, err := hashkey.Keys{APIReader: s.client, Writer: s.client}.Of(t.Context(), workspace)
	s.Expect(err).NotTo(HaveOccurred())
	s.setUpdate(user, func(update *autov1alpha1.Update) {
		started(update)
		update.Status.InputValuesDigest = inputs.Digest(inputs.ValueIDs(key, []*agentpb.ConfigItem{
			{Key: "network:vpcId", Value: &agentpb.ConfigItem_Text{Text: "none"}},
		}))
		update.Status.InputVersionsDigest = inputs.VersionOfOutputs(s.namespace, types.NamespacedName{Namespace: s.namespace, Name: "network"}, nil).ID
		succeeded(update)
	})
	s.await(user, func(stack *pulumiv1.Stack) bool { return conditions.IsReady(stack) && stack.Status.LastUpdate != nil })
	network := s.dependent("network")
	s.give(network, networkOutputs, "token")
	s.await(user, working)
	s.Expect(s.message()).To(Equal("Input network:vpcId changed"))
}

func TestOutputsThatOthersUseAreKeptAndMadeAgain(t *testing.T) {
	s := newFixture(t)
	network := s.dependent("network")
	s.give(network, networkOutputs, "token")
	stored := network.Status.StoredOutputs
	s.Expect(stored.Update).To(Equal(network.Status.LastUpdate.Name))
	update := &autov1alpha1.Update{Namespace: s.namespace, Name: stored.Update}
	s.Expect(s.client.Delete(t.Context(), update)).To(Succeed())
	s.Consistently(func() int { return len(s.updates()) }, "500ms").Should(BeNumerically("<=", 1), "nobody needs the outputs")

	s.dependent("app", takes(output("network:vpcId", "network", "vpcId")))
	s.await(network, working)
	s.Expect(s.message()).To(Equal("The outputs are no longer stored"))
	s.give(network, networkOutputs, "token")
	used, _, err := inputs.AreUsed(t.Context(), userReader{s.client}, network, references.Scope{})
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(used).To(BeTrue())
}

func TestOutputsThatAnUpdateWaitsForAreMadeAgainWhenTheirSecretIsGone(t *testing.T) {
	s := newFixture(t)
	network := s.dependent("network")
	s.give(network, networkOutputs, "token")
	app := s.dependent("app", takes(output("network:vpcId", "network", "vpcId")))
	s.take(app)
	s.request(network)
	s.give(network, networkOutputs, "token")
	s.await(app, func(stack *pulumiv1.Stack) bool {
		return stack.Status.CurrentUpdate == nil && conditions.IsReady(stack)
	})
	s.Expect(s.requests.looked.Load()).To(BeZero(), "nobody waits for them")

	before := network.Status.StoredOutputs
	s.Expect(s.client.Delete(t.Context(), &corev1.Secret{Namespace: s.namespace, Name: before.Secret})).To(Succeed())
	s.request(app)
	s.await(app, working)
	s.setUpdate(app, func(update *autov1alpha1.Update) {
		conditions.MarkFalse(update, autov1alpha1.UpdateProgressing, pulumiv1.InputNotFoundReason, "the secret is gone")
	})
	s.await(network, working)
	again := &autov1alpha1.Update{}
	s.Expect(s.client.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: network.Status.CurrentUpdate.Name}, again)).To(Succeed())
	s.Expect(*again.Spec.Message).To(Equal("The outputs are no longer stored"))
	s.storeOutputs(again, networkOutputs, "token")
	s.await(network, func(stack *pulumiv1.Stack) bool {
		return stack.Status.StoredOutputs.UID == again.UID && stack.Status.CurrentUpdate == nil
	})
	s.Consistently(func() bool {
		s.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(network), network)).To(Succeed())
		return network.Status.CurrentUpdate == nil && conditions.IsReady(network)
	}, "500ms").Should(BeTrue(), "once is enough, although the update still waits")
}

// userReader lists all Stacks of a namespace, as if an index had them.
type userReader struct{ client.Reader }

func (r userReader) List(ctx context.Context, list client.ObjectList, _ ...client.ListOption) error {
	return r.Reader.List(ctx, list)
}

func TestStacksOfInputsAreDependencies(t *testing.T) {
	s := newFixture(t)
	one := s.dependent("one", takes(output("a", "two", "a")))
	two := s.dependent("two", takes(output("a", "one", "a")))
	s.await(one, inCycle("one", "two", "one"))
	s.await(two, inCycle("two", "one", "two"))
	s.edit(two, takes(output("a", "two", "a")))
	s.await(two, inCycle("two", "two"))

	g := NewWithT(t)
	stack := &pulumiv1.Stack{Namespace: "n"}
	dependsOn("network", "dep.status.ready")(stack)
	takes(output("a", "network", "a"), output("b", "network", "b"), output("c", "dns", "c"))(stack)
	list := namedDependencies(stack)
	g.Expect(list).To(HaveLen(2), "a Stack that is named twice is one dependency")
	g.Expect(list[0].expression).NotTo(BeEmpty())
	g.Expect(list[1].name.Name).To(Equal("dns"))
	g.Expect(list[1].followsRevision()).To(BeTrue())
}

func TestOutputOfAnotherNamespaceNeedsConsent(t *testing.T) {
	s := newFixture(t, func(r *Reconciler) {
		r.Scope.OtherNamespaces = true
		r.WaitInterval = 200 * time.Millisecond // the controller of this test watches one namespace
	})
	other := &corev1.Namespace{GenerateName: "giver-"}
	s.Expect(s.client.Create(t.Context(), other)).To(Succeed())
	foreign := output("db:host", "db", "host")
	foreign.Stack.Namespace = other.Name
	user := s.dependent("app", takes(foreign))
	denied := func(stack *pulumiv1.Stack) bool {
		return notUpdated(pulumiv1.AccessDeniedReason, `input "db:host": Stack `+other.Name+`/db does not share output "host" with namespace `+s.namespace)(stack) &&
			conditions.IsStalled(stack)
	}
	s.await(user, denied)
	refusal := conditions.GetMessage(user, meta.ReadyCondition)

	giver := &pulumiv1.Stack{Namespace: other.Name, Name: "db", Spec: pulumiv1.StackSpec{Stack: "db", ShareOutputs: []pulumiv1.OutputShare{
		{Namespaces: []string{"other-*"}, Outputs: []string{"host"}}, {Namespaces: []string{"*"}, Outputs: []string{"port"}},
	}}}
	s.Expect(s.client.Create(t.Context(), giver)).To(Succeed())
	s.Consistently(func() string {
		s.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(user), user)).To(Succeed())
		return conditions.GetMessage(user, meta.ReadyCondition)
	}, "1s").Should(Equal(refusal), "it does not tell whether the Stack exists")

	giver.Spec.ShareOutputs[0].Namespaces = []string{"no", "sta*-*"}
	s.Expect(s.client.Update(t.Context(), giver)).To(Succeed())
	s.await(user, notUpdated(pulumiv1.DependencyNotReadyReason, "dependency "+other.Name+"/db is not ready"))

	giver.Spec.ShareOutputs = nil
	s.Expect(s.client.Update(t.Context(), giver)).To(Succeed())
	s.await(user, denied)

	s.edit(user, takes(output("a", "none", "a")))
	forbidden := newFixture(t)
	second := forbidden.dependent("app", takes(foreign))
	forbidden.await(second, notUpdated(pulumiv1.AccessDeniedReason, "references to another namespace are not allowed"))
}

func TestInputsThatCannotBeUsedAreRefused(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{Spec: pulumiv1.StackSpec{Stack: "dev", Config: map[string]apiextensionsv1.JSON{"size": {Raw: []byte("1")}}}}
	takes(output("size", "network", "size"))(stack)
	_, err := desire(stack)
	g.Expect(err).To(MatchError(`configuration key "size" is set in spec.config and in spec.inputs`))
	stack.Spec.Inputs[0].Path = true
	_, err = desire(stack)
	g.Expect(err).NotTo(HaveOccurred(), "a path may lead into a value of spec.config")
	stack.Spec.Inputs[0].Stack.Path = "a["
	_, err = desire(stack)
	g.Expect(err).To(MatchError(ContainSubstring(`spec.inputs: key "size": the path cannot be read`)))
}

// Otherwise each edit of a Stack could have the controller reconcile a hundred Stacks of other namespaces.
func TestStackWakesOnlyStacksThatShareAnOutputWithIt(t *testing.T) {
	var r *Reconciler
	s := newFixture(t, func(reconciler *Reconciler) { r = reconciler })
	giver := s.dependent("network", func(stack *pulumiv1.Stack) {
		stack.Spec.Suspend = true
		stack.Spec.ShareOutputs = []pulumiv1.OutputShare{{Namespaces: []string{"friend"}, Outputs: []string{"vpc"}}}
	})
	beyond := &Reconciler{Client: r.Client, Scope: references.Scope{OtherNamespaces: true}}
	woken := func(r *Reconciler, namespace, out string) func() []reconcile.Request {
		input := output("vpc", giver.Name, out)
		input.Stack.Namespace = s.namespace
		stack := &pulumiv1.Stack{Namespace: namespace, Name: "web", Spec: pulumiv1.StackSpec{Inputs: []autov1alpha1.Input{input}}}
		return func() []reconcile.Request { return r.requestsForInputs(t.Context(), stack) }
	}
	it := ConsistOf(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(giver)})
	s.Eventually(woken(r, s.namespace, "vpc")).Should(it)
	s.Expect(woken(beyond, "friend", "vpc")()).To(it)
	s.Expect(woken(beyond, "friend", "other")()).To(BeEmpty())
	s.Expect(woken(beyond, "stranger", "vpc")()).To(BeEmpty())
	s.Expect(woken(r, "friend", "vpc")()).To(BeEmpty(), "references to other namespaces are not allowed")
}
