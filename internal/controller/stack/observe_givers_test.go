package stack

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/references"
)

// beyond is a Stack that the controller of the test does not watch, as it does not watch those of other shards. The test plays its controller.
type beyond struct {
	*fixture
	stack   *pulumiv1.Stack
	updates int
}

func (s *fixture) beyond() *beyond {
	s.t.Helper()
	namespace := &corev1.Namespace{GenerateName: "giver-"}
	s.Expect(s.client.Create(s.t.Context(), namespace)).To(Succeed())
	stack := &pulumiv1.Stack{Namespace: namespace.Name, Name: "db", Spec: pulumiv1.StackSpec{
		Stack: "db", ShareOutputs: []pulumiv1.OutputShare{{Namespaces: []string{"*"}, Outputs: []string{"host"}}},
	}}
	s.Expect(s.client.Create(s.t.Context(), stack)).To(Succeed())
	return &beyond{fixture: s, stack: stack}
}

// give has an update of the Stack succeed with the output.
func (b *beyond) give(host string) {
	b.t.Helper()
	b.updates++
	name := fmt.Sprintf("db-%d", b.updates)
	stored := &pulumiv1.StoredOutputs{Update: name, UID: types.UID(name), Secret: name + autov1alpha1.OutputsSecretSuffix}
	b.Expect(b.client.Create(b.t.Context(), &corev1.Secret{
		Namespace: b.stack.Namespace, Name: stored.Secret, StringData: map[string]string{"host": `"` + host + `"`},
		Annotations: map[string]string{autov1alpha1.SecretOutputsAnnotation: "[]"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: autov1alpha1.GroupVersion.String(), Kind: autov1alpha1.UpdateKind, Name: name,
			UID: stored.UID, Controller: new(true)}},
	})).To(Succeed())
	b.set(func(status *pulumiv1.StackStatus) {
		status.LastUpdate = &pulumiv1.StackUpdateStatus{Name: name, State: pulumiv1.StackUpdateSucceeded}
		status.StoredOutputs, status.ObservedGeneration = stored, b.stack.Generation
		conditions.MarkTrue(b.stack, meta.ReadyCondition, meta.SucceededReason, "done")
	})
}

func (b *beyond) set(change func(*pulumiv1.StackStatus)) {
	b.t.Helper()
	b.Expect(b.client.Get(b.t.Context(), client.ObjectKeyFromObject(b.stack), b.stack)).To(Succeed())
	before := b.stack.DeepCopy()
	change(&b.stack.Status)
	b.Expect(b.client.Status().Patch(b.t.Context(), b.stack, client.MergeFrom(before))).To(Succeed())
}

// asked returns the request for an update that somebody has written into the Stack.
func (b *beyond) asked() string {
	b.Expect(b.client.Get(b.t.Context(), client.ObjectKeyFromObject(b.stack), b.stack)).To(Succeed())
	return reconcileRequest(b.stack)
}

func TestStacksFollowOutputsOfAStackThatIsNotWatched(t *testing.T) {
	s := newFixture(t, func(r *Reconciler) { r.Scope.OtherNamespaces, r.WaitInterval = true, 200*time.Millisecond })
	db := s.beyond()
	db.give("one")
	input := output("db:host", "db", "host")
	input.Stack.Namespace = db.stack.Namespace
	app := s.dependent("app", takes(input))
	s.take(app)
	db.give("two")
	s.await(app, working)
	s.Expect(s.message()).To(Equal("Input db:host changed"))
	s.take(app)

	// Its controller does not see who waits.
	for why, lose := range map[string]func(){
		"the Secret is gone": func() {
			s.Expect(s.client.Delete(t.Context(), &corev1.Secret{Namespace: db.stack.Namespace, Name: db.stack.Status.StoredOutputs.Secret})).To(Succeed())
		},
		"they were never stored": func() { db.set(func(status *pulumiv1.StackStatus) { status.StoredOutputs = nil }) },
	} {
		last := db.stack.Status.LastUpdate.Name
		lose()
		s.request(app)
		s.await(app, working)
		s.Consistently(db.asked, "500ms").ShouldNot(Equal("after-"+last), "no update waits yet: "+why)
		s.setUpdate(app, func(update *autov1alpha1.Update) {
			conditions.MarkFalse(update, autov1alpha1.UpdateProgressing, pulumiv1.InputNotFoundReason, "they are not stored")
		})
		s.Eventually(db.asked).Should(Equal("after-"+last), why)
		db.give("two")
		s.take(app)
	}
}

// The cache, and so its indexes, have only the first inputs of such a Stack.
func TestLargeStackFollowsAllOfItsInputs(t *testing.T) {
	var r *Reconciler
	s := newFixture(t, func(reconciler *Reconciler) { r, reconciler.WaitInterval = reconciler, 200*time.Millisecond })
	network := s.dependent("network")
	s.give(network, networkOutputs, "token")
	mayBeUsed := func() bool {
		used, err := inputs.MayBeUsed(t.Context(), r.Client, network, references.Scope{})
		s.Expect(err).NotTo(HaveOccurred())
		return used
	}
	s.Expect(mayBeUsed()).To(BeFalse())
	var list []autov1alpha1.Input
	for i := range 60 {
		list = append(list, autov1alpha1.Input{
			Key: fmt.Sprintf("app:k%d", i), ConfigMap: &autov1alpha1.KeyReference{Name: "none", Key: "k"},
			Default: &apiextensionsv1.JSON{Raw: []byte(`"` + strings.Repeat("x", 1500) + `"`)},
		})
	}
	app := s.dependent("app", takes(append(list, output("network:vpcId", "network", "vpcId"))...))
	s.take(app)
	used, _, err := inputs.AreUsed(t.Context(), r.Client, network, references.Scope{})
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(used).To(BeFalse(), "otherwise this tests nothing")
	s.Expect(mayBeUsed()).To(BeTrue(), "so the Update with the outputs does not expire")

	other := maps.Clone(networkOutputs)
	other["vpcId"] = `"vpc-2"`
	s.request(network)
	s.give(network, other, "token")
	s.await(app, working)
	s.Expect(s.message()).To(Equal("Input network:vpcId changed"))
}
