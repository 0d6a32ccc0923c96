package stack

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/outputobject"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// storeOutputs stores the outputs of an Update, given as JSON, as the Update controller does. The named ones are secret.
func (s *fixture) storeOutputs(update *autov1alpha1.Update, outputs map[string]string, secret ...string) {
	s.t.Helper()
	masked, err := json.Marshal(append([]string{}, secret...))
	s.Expect(err).NotTo(HaveOccurred())
	stored := &corev1.Secret{
		Namespace: s.namespace, Name: update.Name + autov1alpha1.OutputsSecretSuffix, StringData: outputs, Immutable: new(true),
		Annotations:     map[string]string{autov1alpha1.SecretOutputsAnnotation: string(masked)},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(update, autov1alpha1.GroupVersion.WithKind(autov1alpha1.UpdateKind))},
	}
	s.Expect(s.client.Create(s.t.Context(), stored)).To(Succeed())
	s.mark(update, succeeded, func(update *autov1alpha1.Update) {
		update.Status.StartTime, update.Status.Outputs = new(metav1.Now()), stored.Name
	})
}

// give ends the update that is in progress with the outputs, and waits until the result is recorded.
func (s *fixture) give(stack *pulumiv1.Stack, outputs map[string]string, secret ...string) {
	s.t.Helper()
	update := s.awaitUnfinishedUpdate()
	s.storeOutputs(update, outputs, secret...)
	s.await(stack, func(stack *pulumiv1.Stack) bool {
		return stack.Status.LastUpdate != nil && stack.Status.LastUpdate.Name == update.Name && stack.Status.CurrentUpdate == nil
	})
}

func (s *fixture) request(stack *pulumiv1.Stack) {
	s.t.Helper()
	s.edit(stack, func(stack *pulumiv1.Stack) {
		metav1.SetMetaDataAnnotation(&stack.ObjectMeta, pulumiv1.ReconcileRequestAnnotation, time.Now().String())
	})
}

// secretData returns the data of a Secret.
func (s *fixture) secretData(name string) map[string]string {
	s.t.Helper()
	secret, data := &corev1.Secret{}, map[string]string{}
	s.Expect(s.client.Get(s.t.Context(), client.ObjectKey{Namespace: s.namespace, Name: name}, secret)).To(Succeed())
	for key, value := range secret.Data {
		data[key] = string(value)
	}
	return data
}

func (s *fixture) configMap(name string) *corev1.ConfigMap {
	s.t.Helper()
	found := &corev1.ConfigMap{}
	s.Expect(s.client.Get(s.t.Context(), client.ObjectKey{Namespace: s.namespace, Name: name}, found)).To(Succeed())
	return found
}

// names returns the names of all Updates.
func (s *fixture) updateNames() (names []string) {
	for _, update := range s.updates() {
		names = append(names, update.Name)
	}
	slices.Sort(names)
	return names
}

var networkOutputs = map[string]string{"vpcId": `"vpc-1"`, "cluster": `{"endpoint":"https://c","nodes":[{"ip":"10.0.0.1"}]}`, "token": `"s3cret"`, "gone": "null"}

func TestOutputsAreWrittenBeforeTheStackIsReadyAndFollowIt(t *testing.T) {
	var reconciler *Reconciler
	s := newFixture(t, func(r *Reconciler) { reconciler = r })
	stack := s.newStack(func(stack *pulumiv1.Stack) {
		stack.Spec.Outputs = []pulumiv1.OutputObject{
			{Name: "network"},
			{Kind: pulumiv1.OutputConfigMap, Name: "public", Labels: map[string]string{"team": "network"}, DeletionPolicy: pulumiv1.OutputRetain, Keys: []pulumiv1.OutputKey{
				{Key: "VPC_ID", Output: "vpcId"}, {Key: "IP", Output: "cluster", Path: "nodes[0].ip"}, {Key: "missing", Output: "missing", Optional: true},
			}},
		}
	})
	s.give(stack, networkOutputs, "token")
	s.Expect(conditions.IsReady(stack)).To(BeTrue())
	s.Expect(s.secretData("network")).To(Equal(map[string]string{"vpcId": "vpc-1", "cluster": networkOutputs["cluster"], "token": "s3cret"}))
	public := s.configMap("public")
	s.Expect(public.Data).To(Equal(map[string]string{"VPC_ID": "vpc-1", "IP": "10.0.0.1"}))
	s.Expect(public.Labels).To(And(HaveKeyWithValue("team", "network"), HaveKeyWithValue(meta.LabelKeyWatch, meta.LabelValueWatchEnabled)))
	s.Expect(public.OwnerReferences).To(BeEmpty(), "it stays when the Stack goes")
	first := stack.Status.OutputObjects
	s.Expect(first.Update).To(Equal(stack.Status.LastUpdate.Name))

	// Equal outputs are not written again.
	s.request(stack)
	s.give(stack, networkOutputs, "token")
	s.Expect(conditions.IsReady(stack)).To(BeTrue())
	s.Expect(stack.Status.OutputObjects.Objects).To(Equal(first.Objects))
	s.Expect(stack.Status.OutputObjects.UID).NotTo(Equal(first.UID))

	// A failed update changes nothing, and a key whose output is gone is gone.
	s.request(stack)
	update := s.awaitUnfinishedUpdate()
	s.mark(update, succeeded, func(update *autov1alpha1.Update) {
		conditions.MarkTrue(update, autov1alpha1.UpdateFailed, autov1alpha1.UpdateFailedReason, "no quota")
	})
	s.await(stack, reasonIs(meta.ReadyCondition, pulumiv1.RetryingAfterFailureReason))
	s.Expect(s.secretData("network")).To(HaveLen(3))
	s.request(stack)
	s.give(stack, map[string]string{"vpcId": `"vpc-2"`, "cluster": networkOutputs["cluster"]})
	s.Expect(s.secretData("network")).To(Equal(map[string]string{"vpcId": "vpc-2", "cluster": networkOutputs["cluster"]}))
	s.Expect(s.configMap("public").Data).To(HaveKeyWithValue("VPC_ID", "vpc-2"))

	// Another name and what is no longer asked for: without an update.
	updates := s.updateNames()
	s.edit(stack, func(stack *pulumiv1.Stack) { stack.Spec.Outputs = []pulumiv1.OutputObject{{Name: "renamed"}} })
	s.await(stack, func(stack *pulumiv1.Stack) bool {
		written := stack.Status.OutputObjects
		return conditions.IsReady(stack) && stack.Status.ObservedGeneration == stack.Generation && len(written.Objects) == 1 && written.Objects[0].Name == "renamed"
	})
	s.Expect(s.secretData("renamed")).To(HaveLen(2))
	s.Expect(apierrors.IsNotFound(s.client.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: "network"}, &corev1.Secret{}))).To(BeTrue())
	s.Expect(s.configMap("public").Data).To(HaveLen(2), "retained")
	remembered := reconciler.recallOutputs(stack)
	s.Eventually(func() []string {
		remembered.mu.Lock()
		defer remembered.mu.Unlock()
		return slices.Collect(maps.Keys(remembered.objects))
	}).Should(ConsistOf("Secret/renamed"), "a Stack can name others for ever")
	s.edit(stack, func(stack *pulumiv1.Stack) { stack.Spec.Outputs = nil })
	s.await(stack, func(stack *pulumiv1.Stack) bool {
		return stack.Status.OutputObjects == nil && conditions.IsReady(stack)
	})
	s.Expect(s.updateNames()).To(Equal(updates))
}

func TestOutputsThatSomebodyChangedAreRestored(t *testing.T) {
	s := newFixture(t)
	stack := s.newStack(func(stack *pulumiv1.Stack) {
		stack.Spec.Outputs = []pulumiv1.OutputObject{
			{Name: "network"}, {Name: "unwatched", Labels: map[string]string{meta.LabelKeyWatch: "Disabled"}},
		}
	})
	s.give(stack, map[string]string{"url": `"right"`})
	updates := s.updateNames()
	network := &corev1.Secret{Namespace: s.namespace, Name: "network"}
	for name, change := range map[string]func(){
		"deleted": func() { s.Expect(s.client.Delete(t.Context(), network)).To(Succeed()) },
		"edited": func() {
			s.Expect(s.client.Patch(t.Context(), network, client.RawPatch(client.Merge.Type(), []byte(`{"data": {"url": "Zm9yZ2Vk"}}`)))).To(Succeed())
		},
		"without its label": func() {
			s.Expect(s.client.Patch(t.Context(), network, client.RawPatch(client.Merge.Type(), []byte(`{"data": null, "metadata": {"labels": null}}`)))).To(Succeed())
		},
	} {
		change()
		s.Eventually(func(g Gomega) {
			g.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(network), network)).To(Succeed())
			g.Expect(network.Data).To(HaveKeyWithValue("url", []byte("right")), name)
			g.Expect(network.Labels).To(HaveKey(meta.LabelKeyWatch))
		}).Should(Succeed())
		s.await(stack, func(stack *pulumiv1.Stack) bool {
			return conditions.IsReady(stack) && stack.Status.OutputObjects.Objects[0].ResourceVersion == network.ResourceVersion
		})
	}
	s.Expect(s.updateNames()).To(Equal(updates))

	unwatched := &corev1.Secret{Namespace: s.namespace, Name: "unwatched"}
	s.Expect(s.client.Delete(t.Context(), unwatched)).To(Succeed())
	s.request(stack)
	s.give(stack, map[string]string{"url": `"right"`})
	s.Expect(conditions.IsReady(stack)).To(BeTrue())
	s.Expect(s.secretData("unwatched")).To(Equal(map[string]string{"url": "right"}), "the next update restores it, with the same outputs")
}

func TestForeignObjectIsNotOverwrittenByOutputs(t *testing.T) {
	var reconciler *Reconciler
	s := newFixture(t, func(r *Reconciler) { reconciler, r.WaitInterval = r, time.Second })
	theirs := &corev1.Secret{Namespace: s.namespace, Name: "network", StringData: map[string]string{"url": "theirs"}}
	s.Expect(s.client.Create(t.Context(), theirs)).To(Succeed())
	stack := s.newStack(func(stack *pulumiv1.Stack) {
		stack.Spec.Outputs = []pulumiv1.OutputObject{
			{Name: "network"}, {Name: "other"}, {Name: "unwatched", Labels: map[string]string{meta.LabelKeyWatch: "Disabled"}},
		}
	})
	s.give(stack, map[string]string{"url": `"right"`})
	s.await(stack, reasonIs(meta.StalledCondition, pulumiv1.OutputsConflictReason))
	s.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(ContainSubstring("Secret network exists and was not created by this Stack"))
	s.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded))
	s.Expect(s.secretData("network")).To(Equal(map[string]string{"url": "theirs"}))
	s.Expect(s.secretData("other")).To(Equal(map[string]string{"url": "right"}))
	updates := s.updateNames()
	s.Eventually(func(g Gomega) {
		seen, key := &pulumiv1.Stack{}, client.ObjectKeyFromObject(stack)
		g.Expect(s.client.Get(t.Context(), key, stack)).To(Succeed())
		g.Expect(reconciler.Get(t.Context(), key, seen)).To(Succeed())
		g.Expect(seen.ResourceVersion).To(Equal(stack.ResourceVersion))
	}).Should(Succeed(), "a controller that has not seen its last status writes all again")
	unwatched := &corev1.Secret{Namespace: s.namespace, Name: "unwatched"}
	s.Expect(s.client.Delete(t.Context(), unwatched)).To(Succeed())
	s.Expect(s.client.Delete(t.Context(), theirs)).To(Succeed())
	s.await(stack, isReady)
	s.Expect(s.secretData("network")).To(Equal(map[string]string{"url": "right"}))
	err := s.client.Get(t.Context(), client.ObjectKeyFromObject(unwatched), unwatched)
	s.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "what was written with the outputs of this update is not written again for another object")
	s.Expect(s.updateNames()).To(Equal(updates))
}

func TestOutputsThatCannotBeWrittenSayWhy(t *testing.T) {
	s := newFixture(t)
	stack := s.newStack(func(stack *pulumiv1.Stack) { stack.Spec.Outputs = []pulumiv1.OutputObject{{Name: "good"}} })
	large := `"` + strings.Repeat("x", 600<<10) + `"`
	s.give(stack, map[string]string{"url": `"right"`, "token": `"s3cret"`, "large": large}, "token")
	s.Expect(conditions.IsReady(stack)).To(BeTrue())
	updates := s.updateNames()
	for reason, wanted := range map[string]pulumiv1.OutputObject{
		pulumiv1.OutputSecretReason:    {Kind: pulumiv1.OutputConfigMap, Name: "bad", Keys: []pulumiv1.OutputKey{{Key: "a", Output: "token"}}},
		pulumiv1.OutputNotFoundReason:  {Name: "bad", Keys: []pulumiv1.OutputKey{{Key: "a", Output: "url"}, {Key: "b", Output: "url", Path: "port"}}},
		pulumiv1.OutputsTooLargeReason: {Name: "bad", Keys: []pulumiv1.OutputKey{{Key: "a", Output: "large"}, {Key: "b", All: true}}},
	} {
		s.edit(stack, func(stack *pulumiv1.Stack) { stack.Spec.Outputs = append(stack.Spec.Outputs[:1], wanted) })
		s.await(stack, reasonIs(meta.StalledCondition, reason))
		message := conditions.GetMessage(stack, meta.ReadyCondition)
		s.Expect(message).To(ContainSubstring("the outputs are not written: %s bad", cmp.Or(wanted.Kind, pulumiv1.OutputSecret)))
		s.Expect(message).NotTo(ContainSubstring("s3cret"))
		s.Expect(stack.Status.OutputObjects.Objects).To(HaveLen(1))
	}
	s.edit(stack, func(stack *pulumiv1.Stack) { stack.Spec.Outputs = stack.Spec.Outputs[:1] })
	s.await(stack, isReady)
	s.Expect(s.updateNames()).To(Equal(updates))
}

func TestOutputsNeedARight(t *testing.T) {
	var writer *outputobject.Writer
	s := newFixture(t, func(r *Reconciler) {
		r.WaitInterval, writer = time.Second, r.Outputs
	})
	s.Expect(writer).NotTo(BeNil())
	cluster, err := startCluster()
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(s.client.Create(t.Context(), &corev1.ServiceAccount{Namespace: s.namespace, Name: "controller"})).To(Succeed())
	config, err := cluster.ServiceAccountConfig(t.Context(), s.namespace, "controller")
	s.Expect(err).NotTo(HaveOccurred())
	http, err := rest.HTTPClientFor(config)
	s.Expect(err).NotTo(HaveOccurred())
	limited, err := outputobject.NewWriter(config, http, s.client)
	s.Expect(err).NotTo(HaveOccurred())
	*writer = *limited

	stack := s.newStack(func(stack *pulumiv1.Stack) { stack.Spec.Outputs = []pulumiv1.OutputObject{{Name: "network"}} })
	s.give(stack, map[string]string{"url": `"right"`})
	s.await(stack, reasonIs(meta.StalledCondition, pulumiv1.OutputsNotWrittenReason))
	message := conditions.GetMessage(stack, meta.ReadyCondition)
	s.Expect(message).To(ContainSubstring("flux-pulumi outputs grant app -n " + s.namespace + " | kubectl apply -f -"))
	s.Expect(stack.Status.Outputs).To(HaveKey("url"), "the result is recorded")
	_, granted, found := strings.Cut(message, ", or apply: ")
	s.Expect(found).To(BeTrue())
	first, second, found := strings.Cut(granted, " and ")
	s.Expect(found).To(BeTrue())
	role, binding := &rbacv1.Role{}, &rbacv1.RoleBinding{}
	s.Expect(json.Unmarshal([]byte(first), role)).To(Succeed())
	s.Expect(json.Unmarshal([]byte(second), binding)).To(Succeed())
	s.Expect(s.client.Create(t.Context(), role)).To(Succeed())
	s.Expect(s.client.Create(t.Context(), binding)).To(Succeed())
	s.await(stack, isReady)
	s.Expect(s.secretData("network")).To(Equal(map[string]string{"url": "right"}))
}

func TestUpdateWithTheOutputsIsKept(t *testing.T) {
	suite.Long(t, "how long Updates are kept; see TestStackKeepsTheUpdateWithItsOutputs")
	s := newFixture(t)
	stack := s.newStack(func(stack *pulumiv1.Stack) {
		stack.Spec.UpdateHistoryLimit = new(int32)
		stack.Spec.Outputs = []pulumiv1.OutputObject{{Name: "network"}}
	})
	s.give(stack, map[string]string{"url": `"1"`})
	kept := stack.Status.LastUpdate.Name
	var later []string
	for range 2 {
		s.request(stack)
		update := s.awaitUnfinishedUpdate()
		later = append(later, update.Name)
		s.mark(update, succeeded, func(update *autov1alpha1.Update) {
			conditions.MarkTrue(update, autov1alpha1.UpdateFailed, autov1alpha1.UpdateFailedReason, "no quota")
		})
		s.await(stack, func(stack *pulumiv1.Stack) bool {
			return stack.Status.LastUpdate.Name == update.Name && stack.Status.CurrentUpdate == nil
		})
	}
	isDeleted := func(name string) bool {
		update := &autov1alpha1.Update{}
		s.Expect(s.client.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: name}, update)).To(Succeed())
		return !update.DeletionTimestamp.IsZero()
	}
	s.Eventually(isDeleted).WithArguments(later[0]).Should(BeTrue(), "the history has no room for it")
	s.Expect(isDeleted(kept)).To(BeFalse())
}

func TestObjectsAreMadeOfOutputs(t *testing.T) {
	annotations := func(values map[string]any) map[string]string {
		encoded := map[string]string{}
		for name, value := range values {
			content, err := json.Marshal(value)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			encoded[name] = string(content)
		}
		return encoded
	}
	stored := &corev1.Secret{
		Data: map[string][]byte{
			"text": []byte(`"a <b>\n"`), "number": []byte(`1.50`), "true": []byte(`true`), "list": []byte(`[1,{"a.b":["x",12345678901234567890]}]`), "null": []byte(`null`),
			"token": []byte(`"s3cret"`), "partly": []byte(`{"public":"p","url":"https://s3cret@host"}`), "odd_name": []byte(`"odd"`),
		},
		Annotations: annotations(map[string]any{
			autov1alpha1.SecretOutputsAnnotation: []string{"token"}, autov1alpha1.OutputNamesAnnotation: map[string]string{"odd_name": "odd name"},
			autov1alpha1.ShownOutputsAnnotation: map[string]any{"partly": "[secret]"}, autov1alpha1.OmittedOutputsAnnotation: []string{"huge"},
			autov1alpha1.UnknownOutputsAnnotation: []string{"unknown"},
		}),
	}
	complete := stored.DeepCopy()
	delete(complete.Annotations, autov1alpha1.OmittedOutputsAnnotation)
	delete(complete.Annotations, autov1alpha1.UnknownOutputsAnnotation)
	key := func(change func(*pulumiv1.OutputKey)) []pulumiv1.OutputKey {
		key := pulumiv1.OutputKey{Key: "k"}
		change(&key)
		return []pulumiv1.OutputKey{key}
	}
	output := func(name string) []pulumiv1.OutputKey { return key(func(k *pulumiv1.OutputKey) { k.Output = name }) }
	at := func(name, path string) []pulumiv1.OutputKey {
		return key(func(k *pulumiv1.OutputKey) { k.Output, k.Path = name, path })
	}
	asJSON := func(keys []pulumiv1.OutputKey) []pulumiv1.OutputKey {
		keys[0].Format = pulumiv1.OutputJSON
		return keys
	}
	optional := func(keys []pulumiv1.OutputKey) []pulumiv1.OutputKey { keys[0].Optional = true; return keys }
	all := func() []pulumiv1.OutputKey { return key(func(k *pulumiv1.OutputKey) { k.All = true }) }
	for name, test := range map[string]struct {
		kind   pulumiv1.OutputObjectKind
		keys   []pulumiv1.OutputKey
		want   string // the value of k; "-" when there is no such key
		reason string
	}{
		"text":                              {keys: output("text"), want: "a <b>\n"},
		"text as JSON":                      {keys: asJSON(output("text")), want: `"a <b>\n"`},
		"a number as it is written":         {keys: output("number"), want: "1.50"},
		"a truth value":                     {keys: output("true"), want: "true"},
		"a structure":                       {keys: output("list"), want: `[1,{"a.b":["x",12345678901234567890]}]`},
		"nothing":                           {keys: output("null"), want: "-"},
		"nothing, as JSON":                  {keys: asJSON(output("null")), want: "-"},
		"a renamed output":                  {keys: output("odd name"), want: "odd"},
		"the key of a renamed output":       {keys: output("odd_name"), reason: pulumiv1.OutputNotFoundReason},
		"a path":                            {keys: at("list", `[1]["a.b"][0]`), want: "x"},
		"a path to a large number":          {keys: at("list", `[1]["a.b"][1]`), want: "12345678901234567890"},
		"a path to a structure":             {keys: at("list", `[1]`), want: `{"a.b":["x",12345678901234567890]}`},
		"a path to a text, as JSON":         {keys: asJSON(at("list", `[1]["a.b"][0]`)), want: `"x"`},
		"a path beyond the end":             {keys: at("list", `[2]`), reason: pulumiv1.OutputNotFoundReason},
		"a path beyond the end, optional":   {keys: optional(at("list", `[2]`)), want: "-"},
		"a path into a text":                {keys: at("text", `a`), reason: pulumiv1.OutputNotFoundReason},
		"a path into a missing output":      {keys: optional(at("none", `a`)), want: "-"},
		"a missing output":                  {keys: output("none"), reason: pulumiv1.OutputNotFoundReason},
		"an output that is too large":       {keys: optional(output("huge")), reason: pulumiv1.OutputsTooLargeReason},
		"an output that is not known":       {keys: optional(output("unknown")), reason: pulumiv1.OutputNotFoundReason},
		"a secret":                          {keys: output("token"), want: "s3cret"},
		"a secret in a ConfigMap":           {kind: pulumiv1.OutputConfigMap, keys: output("token"), reason: pulumiv1.OutputSecretReason},
		"a secret, optional":                {kind: pulumiv1.OutputConfigMap, keys: optional(output("token")), reason: pulumiv1.OutputSecretReason},
		"a part of what has a secret in it": {kind: pulumiv1.OutputConfigMap, keys: at("partly", "public"), reason: pulumiv1.OutputSecretReason},
		"plain in a ConfigMap":              {kind: pulumiv1.OutputConfigMap, keys: output("number"), want: "1.50"},
		"all": {keys: all(), want: `{"list":[1,{"a.b":["x",12345678901234567890]}],"number":1.50,"odd name":"odd","partly":{"public":"p","url":"https://s3cret@host"},` +
			`"text":"a <b>\n","token":"s3cret","true":true}`},
		"all in a ConfigMap": {kind: pulumiv1.OutputConfigMap, keys: all(), want: `{"list":[1,{"a.b":["x",12345678901234567890]}],"number":1.50,"odd name":"odd","text":"a <b>\n","true":true}`},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			outputs := stored
			if test.keys[0].All {
				outputs = complete
			}
			object, problem := newOutputTable(outputs).render(&pulumiv1.Stack{}, &pulumiv1.OutputObject{Kind: test.kind, Name: "o", Keys: test.keys})
			if test.reason != "" {
				g.Expect(problem).NotTo(BeNil())
				g.Expect(problem.reason).To(Equal(test.reason))
				g.Expect(problem.message).To(And(HavePrefix(string(cmp.Or(test.kind, pulumiv1.OutputSecret))+" o"), Not(ContainSubstring("s3cret"))))
				return
			}
			g.Expect(problem).To(BeNil())
			got, found := object.Data["k"]
			g.Expect(found).To(Equal(test.want != "-"))
			if found {
				g.Expect(string(got)).To(Equal(test.want))
			}
		})
	}
	for kind, want := range map[pulumiv1.OutputObjectKind][]string{
		pulumiv1.OutputSecret:    {"list", "number", "odd_name", "partly", "text", "token", "true"},
		pulumiv1.OutputConfigMap: {"list", "number", "odd_name", "text", "true"},
	} {
		object, problem := newOutputTable(complete).render(&pulumiv1.Stack{}, &pulumiv1.OutputObject{Kind: kind, Name: "o"})
		g := NewWithT(t)
		g.Expect(problem).To(BeNil())
		g.Expect(slices.Sorted(maps.Keys(object.Data))).To(Equal(want))
	}
}

// Otherwise a key would be gone from the object although the stack still has the output.
func TestObjectWithAllOutputsIsNotWrittenWithoutThoseThatHaveNoValue(t *testing.T) {
	for annotation, reason := range map[string]string{
		autov1alpha1.OmittedOutputsAnnotation: pulumiv1.OutputsTooLargeReason, autov1alpha1.UnknownOutputsAnnotation: pulumiv1.OutputNotFoundReason,
	} {
		for _, kind := range []pulumiv1.OutputObjectKind{pulumiv1.OutputSecret, pulumiv1.OutputConfigMap} {
			for _, keys := range [][]pulumiv1.OutputKey{nil, {{Key: "values.yaml", All: true}}} {
				g := NewWithT(t)
				table := newOutputTable(&corev1.Secret{Data: map[string][]byte{"a": []byte(`"x"`)}, ObjectMeta: metav1.ObjectMeta{
					Annotations: map[string]string{autov1alpha1.SecretOutputsAnnotation: "[]", annotation: `["certificate"]`},
				}})
				object, problem := table.render(&pulumiv1.Stack{}, &pulumiv1.OutputObject{Kind: kind, Name: "o", Keys: keys})
				g.Expect(object).To(BeNil())
				g.Expect(problem.reason).To(Equal(reason))
				g.Expect(problem.message).To(ContainSubstring(`"certificate"`))
			}
		}
	}
}

// Whoever may edit Secrets may remove the annotations that say what is secret. Nothing of the Secret is in a ConfigMap then.
func TestOutputsOfASecretWithBrokenAnnotationsAreAllSecret(t *testing.T) {
	for _, annotations := range []map[string]string{nil, {autov1alpha1.SecretOutputsAnnotation: "no JSON"}, {autov1alpha1.SecretOutputsAnnotation: "[]", autov1alpha1.ShownOutputsAnnotation: "["}} {
		g := NewWithT(t)
		table := newOutputTable(&corev1.Secret{Data: map[string][]byte{"a": []byte(`"x"`)}, ObjectMeta: metav1.ObjectMeta{Annotations: annotations}})
		object, problem := table.render(&pulumiv1.Stack{}, &pulumiv1.OutputObject{Kind: pulumiv1.OutputConfigMap, Name: "o"})
		g.Expect(problem).To(BeNil())
		g.Expect(object.Data).To(BeEmpty())
	}
}

func TestPathsIntoOutputsAreBounded(t *testing.T) {
	g := NewWithT(t)
	many := []byte("[" + strings.Repeat("0,", 200_000) + "0]")
	deep := []byte(strings.Repeat("[", 5000) + strings.Repeat("]", 5000))
	table := newOutputTable(&corev1.Secret{
		Data:       map[string][]byte{"many": many, "deep": deep, "broken": []byte("{")},
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{autov1alpha1.SecretOutputsAnnotation: "[]"}},
	})
	for output, reason := range map[string]string{"many": pulumiv1.OutputsTooLargeReason, "deep": pulumiv1.OutputsTooLargeReason} {
		_, problem := table.render(&pulumiv1.Stack{}, &pulumiv1.OutputObject{Name: "o", Keys: []pulumiv1.OutputKey{{Key: "k", Output: output, Path: "[0]"}}})
		g.Expect(problem).NotTo(BeNil(), output)
		g.Expect(problem.reason).To(Equal(reason))
	}
}

func TestObjectThatTheStackReadsCannotHaveItsOutputs(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{Namespace: "n", Spec: pulumiv1.StackSpec{
		Stack: "dev", Envs: []string{"settings"}, Outputs: []pulumiv1.OutputObject{{Kind: pulumiv1.OutputConfigMap, Name: "settings"}},
	}}
	_, err := desire(stack)
	g.Expect(err).To(MatchError(ContainSubstring(`the Stack also reads ConfigMap "settings"`)))
	stack.Spec.Outputs[0] = pulumiv1.OutputObject{Name: "settings", Keys: []pulumiv1.OutputKey{{Key: "k", Output: "a", Path: "a["}}}
	_, err = desire(stack)
	g.Expect(err).To(MatchError(ContainSubstring("the path cannot be read")))
}

func TestStackKeepsTheUpdateWithItsOutputs(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{}
	update := &autov1alpha1.Update{ObjectMeta: metav1.ObjectMeta{UID: "1"}}
	g.Expect(stack.KeepsOutputsOf(update, false)).To(BeFalse())
	stack.Status.OutputObjects = &pulumiv1.OutputObjectsStatus{UID: "1"}
	g.Expect(stack.KeepsOutputsOf(update, false)).To(BeFalse(), "spec.outputs is empty")
	stack.Spec.Outputs = []pulumiv1.OutputObject{{Name: "a"}}
	g.Expect(stack.KeepsOutputsOf(update, false)).To(BeTrue())
	update.UID = "2"
	g.Expect(stack.KeepsOutputsOf(update, false)).To(BeFalse())
	stack.Status.StoredOutputs = &pulumiv1.StoredOutputs{UID: "2"}
	g.Expect(stack.KeepsOutputsOf(update, false)).To(BeFalse(), "nobody needs them")
	g.Expect(stack.KeepsOutputsOf(update, true)).To(BeTrue(), "another Stack has them as inputs")
	stack.Spec.ShareOutputs = []pulumiv1.OutputShare{{}}
	g.Expect(stack.KeepsOutputsOf(update, false)).To(BeTrue(), "a Stack that this controller does not see may have them as inputs")
}
