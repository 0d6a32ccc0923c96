package rbac_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/crypto/ssh"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// fixture tests one row, in its own namespace.
type fixture struct {
	*WithT
	*installation
	t          *testing.T
	controller *controller
	namespace  string
	// lines are messages that are neither in the log nor in a status.
	lines []string
}

// said returns all messages: the log after its first since bytes, the lines, and the statuses of the objects in the namespace.
func (p *fixture) said(since int) (string, error) {
	log, err := p.controller.logged()
	if err != nil {
		return "", err
	}
	var out strings.Builder
	out.WriteString(log[min(since, len(log)):] + strings.Join(p.lines, "\n"))
	for _, list := range []client.ObjectList{&pulumiv1.StackList{}, &autov1alpha1.WorkspaceList{}, &autov1alpha1.UpdateList{}} {
		if err := p.client.List(p.t.Context(), list, client.InNamespace(p.namespace)); err != nil {
			return "", err
		}
		content, err := yaml.Marshal(list)
		if err != nil {
			return "", err
		}
		// YAML breaks long lines.
		out.WriteString(strings.Join(strings.Fields(string(content)), " "))
	}
	return out.String(), nil
}

func (p *fixture) create(objects ...client.Object) {
	p.t.Helper()
	for _, object := range objects {
		object.SetNamespace(p.namespace)
		p.Expect(p.client.Create(p.t.Context(), object)).To(Succeed())
	}
}

// stack creates the Stack "app", whose program is in its image.
func (p *fixture) stack(change func(*pulumiv1.StackSpec)) {
	p.t.Helper()
	stack := &pulumiv1.Stack{
		Name: "app",
		Spec: pulumiv1.StackSpec{Stack: "dev", WorkspaceTemplate: &pulumiv1.WorkspaceTemplate{
			Spec: &autov1alpha1.WorkspaceSpec{Image: "one"},
		}},
	}
	change(&stack.Spec)
	p.create(stack)
}

func (p *fixture) newStack() { p.stack(func(*pulumiv1.StackSpec) {}) }

func (p *fixture) newReclaimedStack() {
	p.stack(func(spec *pulumiv1.StackSpec) { spec.WorkspaceReclaimPolicy = pulumiv1.WorkspaceReclaimDelete })
}

func (p *fixture) newProgramStack() {
	p.create(&pulumiv1.Program{Name: "app"})
	p.stack(func(spec *pulumiv1.StackSpec) { spec.ProgramRef = &pulumiv1.ProgramReference{Name: "app"} })
}

// newGitStack creates a Stack whose git server has its known hosts in a ConfigMap.
func (p *fixture) newGitStack() {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	p.Expect(err).NotTo(HaveOccurred())
	block, err := ssh.MarshalPrivateKey(key, "")
	p.Expect(err).NotTo(HaveOccurred())
	p.create(&corev1.Secret{Name: "ssh", Data: map[string][]byte{"key": pem.EncodeToMemory(block)}})
	p.stack(func(spec *pulumiv1.StackSpec) {
		source := `{projectRepo: "ssh://git@git.example.com/app.git", branch: main, gitAuth: {
			sshAuth: {sshPrivateKey: {type: Secret, secret: {name: ssh, key: key}}}, knownHostsRef: {kind: ConfigMap, name: hosts}}}`
		p.Expect(yaml.Unmarshal([]byte(source), spec)).To(Succeed())
	})
}

func fluxStack(kind string) func(*fixture) {
	return func(p *fixture) {
		p.stack(func(spec *pulumiv1.StackSpec) {
			spec.FluxSource = &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{Kind: kind, Name: "source"}}
		})
	}
}

// dependentOn creates a Stack that waits for an object of the kind.
func dependentOn(apiVersion, kind string) func(*fixture) {
	return func(p *fixture) {
		p.stack(func(spec *pulumiv1.StackSpec) {
			spec.DependsOn = []pulumiv1.DependencyReference{{APIVersion: apiVersion, Kind: kind, Name: "base"}}
		})
	}
}

// currentUpdate waits until the Stack has an Update, and returns the Update.
func (p *fixture) currentUpdate() *autov1alpha1.Update {
	p.t.Helper()
	update := &autov1alpha1.Update{}
	p.Eventually(func(g Gomega) {
		stack := &pulumiv1.Stack{}
		g.Expect(p.client.Get(p.t.Context(), p.key("app"), stack)).To(Succeed())
		g.Expect(stack.Status.CurrentUpdate).NotTo(BeNil())
		g.Expect(p.client.Get(p.t.Context(), p.key(stack.Status.CurrentUpdate.Name), update)).To(Succeed())
	}).Should(Succeed())
	return update
}

func (p *fixture) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: p.namespace, Name: name}
}

// completeUpdate marks the Stack's Update as succeeded, as if its agent had ended the operation.
func (p *fixture) completeUpdate() {
	update := p.currentUpdate()
	p.Eventually(func() error {
		if err := p.client.Get(p.t.Context(), client.ObjectKeyFromObject(update), update); err != nil {
			return err
		}
		now := metav1.Now()
		update.Status.StartTime, update.Status.EndTime = &now, &now
		conditions.MarkTrue(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateSucceededReason, "done")
		conditions.MarkFalse(update, autov1alpha1.UpdateFailed, autov1alpha1.UpdateSucceededReason, "done")
		conditions.MarkFalse(update, autov1alpha1.UpdateProgressing, autov1alpha1.UpdateSucceededReason, "done")
		return p.client.Status().Update(p.t.Context(), update)
	}).Should(Succeed())
}

// deleteUpdate deletes the Stack's Update, and does not wait until it is gone.
func (p *fixture) deleteUpdate() {
	p.Expect(p.client.Delete(p.t.Context(), p.currentUpdate())).To(Succeed())
}

// newApproval creates an Approval for the Stack's Update, with the name by which the API server knows the test.
func (p *fixture) newApproval() {
	approval := &autov1alpha1.Approval{Spec: autov1alpha1.ApprovalSpec{
		Update: p.currentUpdate().Name, Digest: "sha256:" + strings.Repeat("0", 64), Decision: autov1alpha1.ApprovalApprove, By: "admin",
	}}
	approval.Name = "app"
	p.create(approval)
}

// newRollout creates a StackRollout. Its source is a Program: the rows of Flux's kinds need kinds that the controller does not watch yet.
func (p *fixture) newRollout() {
	rollout := &autov1alpha1.StackRollout{Spec: autov1alpha1.StackRolloutSpec{
		SourceRef: autov1alpha1.RolloutSource{Kind: "Program", Name: "source"}, Waves: []autov1alpha1.RolloutWave{{Name: "all"}},
	}}
	rollout.Name = "app"
	p.create(rollout)
}

// approveRevision creates an Approval for a StackRollout that does not exist.
func (p *fixture) approveRevision() {
	approval := &autov1alpha1.Approval{Spec: autov1alpha1.ApprovalSpec{
		Rollout: "app", Revision: "main", Decision: autov1alpha1.ApprovalApprove, By: "admin",
	}}
	approval.Name = "revision"
	p.create(approval)
}

// removeUpdate removes the Stack's Update together with its finalizers.
func (p *fixture) removeUpdate() {
	update := p.currentUpdate()
	p.Expect(p.client.Delete(p.t.Context(), update)).To(Succeed())
	_ = p.client.Patch(p.t.Context(), update, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
}

// editStack changes the image of the Stack.
func (p *fixture) editStack() {
	p.currentUpdate()
	p.patchStack(`{"spec":{"workspaceTemplate":{"spec":{"image":"two"}}}}`)
}

func (p *fixture) patchStack(patch string) {
	p.t.Helper()
	stack := &pulumiv1.Stack{Namespace: p.namespace, Name: "app"}
	p.Expect(p.client.Patch(p.t.Context(), stack, client.RawPatch(types.MergePatchType, []byte(patch)))).To(Succeed())
}

// newPod creates the pod that the StatefulSet controller would create, and sets the status of the StatefulSet to observed.
func (p *fixture) newPod() {
	p.newStack()
	p.currentUpdate()
	set := &appsv1.StatefulSet{}
	p.Eventually(func() error { return p.client.Get(p.t.Context(), p.key("app-workspace"), set) }).Should(Succeed())
	p.create(&corev1.ServiceAccount{Name: "default"})
	pod := &corev1.Pod{ObjectMeta: set.Spec.Template.ObjectMeta, Spec: *set.Spec.Template.Spec.DeepCopy()}
	pod.Name = "app-workspace-0"
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}
	p.create(pod)
	set.Status.ObservedGeneration = 1 << 20
	p.Expect(p.client.Status().Update(p.t.Context(), set)).To(Succeed())
}

// createOutputs sends the request that stores the outputs of an Update.
func (p *fixture) createOutputs() {
	p.newStack()
	update := p.currentUpdate()
	config, err := client.New(p.config, client.Options{Scheme: p.client.Scheme()})
	p.Expect(err).NotTo(HaveOccurred())
	p.say(config.Create(p.t.Context(), &corev1.Secret{Namespace: p.namespace, Name: "outputs",
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(update, autov1alpha1.GroupVersion.WithKind(autov1alpha1.UpdateKind))}}))
}

// repeatEvent makes the controller send the same event about a Stack twice.
func (p *fixture) repeatEvent() {
	p.stack(func(spec *pulumiv1.StackSpec) { spec.ProjectRepo, spec.Branch = "file:///app", "main" })
	p.Eventually(func(g Gomega) {
		events := &corev1.EventList{}
		g.Expect(p.client.List(p.t.Context(), events, client.InNamespace(p.namespace))).To(Succeed())
		g.Expect(events.Items).To(ContainElement(And(HaveField("InvolvedObject.Name", "app"), HaveField("Type", corev1.EventTypeWarning))))
	}).Should(Succeed())
	p.patchStack(`{"spec":{"backend":"file:///tmp"}}`)
}

// requestToken requests a token for an agent.
func (p *fixture) requestToken() {
	clientset, err := kubernetes.NewForConfig(p.config)
	p.Expect(err).NotTo(HaveOccurred())
	_, err = clientset.CoreV1().ServiceAccounts(namespace).CreateToken(p.t.Context(), ownAccount, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"auto.pulumi.com/workspaces/" + p.namespace + "/app"}},
	}, metav1.CreateOptions{})
	p.say(err)
}

// askAsAgent asks the API server what an agent with system:auth-delegator asks it.
func (p *fixture) askAsAgent() {
	allowed, err := p.allowed(p.t.Context(), right{clusterRole, autoGroup, "workspaces/rpc", "use"})
	p.Expect(err).NotTo(HaveOccurred())
	p.lines = append(p.lines, map[bool]string{true: "allowed", false: "no"}[allowed])
}

func (p *fixture) say(err error) {
	if err != nil {
		p.lines = append(p.lines, err.Error())
	}
}

// newReplica starts a controller with its own Stacks and its own lease.
func (p *fixture) newReplica() {
	p.controller = p.startController(p.t, "--enable-leader-election", "--watch-label-selector=rbac="+p.namespace,
		"--leader-election-retry-period=200ms", "--leader-election-renew-deadline=2s", "--leader-election-lease-duration=3s")
}
