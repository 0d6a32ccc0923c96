// Package tenancy_test attacks the running system as a tenant who has only the rights of a namespace's administrator and Flux's edit role.
// Another tenant, who shares the cluster and the controller, must not notice.
//
// docs/security.md has the promises, and the attacks on each promise. tests/contract/security generates it from the tables of attacks here.
package tenancy_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
	"github.com/stack-controller/stack-controller/tests/e2e/tenancy/pressure"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/podsystem"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

const (
	// pollInterval is the time between two checks of a wait.
	pollInterval = 200 * time.Millisecond
	// atOnce is how many attacks run at the same time. They wait most of the time.
	atOnce = "10"
)

// manyStacks is how many Stacks one of the attacks creates.
var manyStacks = flag.Int("stacks", 1000, "how many Stacks the tenant creates who has too many")

// patience bounds a wait on a machine that is busy with several attacks. With ten times as many Stacks, a wait may take ten times as long.
func patience() time.Duration { return time.Duration(max(1, *manyStacks/1000)) * 5 * time.Minute }

// system is the running system.
var system *podsystem.System

func TestMain(m *testing.M) {
	suite.LongPackage("attacks in pods")
	ctrl.SetLogger(logr.Discard())
	flag.Parse()
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err)
	}
	options := podsystem.Options{
		// The feature gate is enabled, so that the attacks also cover it.
		ControllerArgs: []string{"--feature-gates=ExternalArtifact=true"},
	}
	os.Exit(podsystem.RunTests(m, options, func(s *podsystem.System) { system = s }))
}

// tenantAccount is the ServiceAccount of a tenant.
const tenantAccount = "tenant"

// tenant is an administrator of namespaces.
type tenant struct {
	namespaces []string
	config     *rest.Config
	client     client.WithWatch
	clientset  kubernetes.Interface
}

// giveFluxRoles installs the roles that come with Flux.
func giveFluxRoles(ctx context.Context, g *WithT) {
	roles, err := os.ReadFile(filepath.Join("testdata", "flux-roles.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = system.Cluster.KubectlInput(ctx, string(roles), "apply", "--server-side", "--filename=-")
	g.Expect(err).NotTo(HaveOccurred())
}

// newTenant creates the namespaces that do not exist, with the restricted profile, and a tenant with a real token who administers them:
// with the role "admin" and the rights that are aggregated to it.
func newTenant(ctx context.Context, g *WithT, namespaces ...string) *tenant {
	t := &tenant{namespaces: namespaces}
	for _, name := range namespaces {
		namespace := &corev1.Namespace{Name: name, Labels: system.NamespaceLabels}
		g.Expect(client.IgnoreAlreadyExists(system.Client.Create(ctx, namespace))).To(Succeed())
		g.Expect(system.Client.Create(ctx, &rbacv1.RoleBinding{
			Namespace: name, Name: tenantAccount,
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespaces[0], Name: tenantAccount}},
		})).To(Succeed())
	}
	account := &corev1.ServiceAccount{Namespace: namespaces[0], Name: tenantAccount}
	g.Expect(system.Client.Create(ctx, account)).To(Succeed())
	var err error
	t.config, err = system.Cluster.ServiceAccountConfig(ctx, namespaces[0], tenantAccount)
	g.Expect(err).NotTo(HaveOccurred())
	t.config.QPS, t.config.Burst = 200, 400 // a tenant need not limit its requests
	t.client, err = localsystem.NewClient(t.config)
	g.Expect(err).NotTo(HaveOccurred())
	t.clientset, err = kubernetes.NewForConfig(t.config)
	g.Expect(err).NotTo(HaveOccurred())
	return t
}

// right is a permission for a resource or a subresource.
type right struct{ verb, group, resource, subresource, namespace string }

// expectRights checks which rights the tenant has, and which not.
func (t *tenant) expectRights(ctx context.Context, g *WithT, others ...string) {
	own := t.namespaces[0]
	for _, may := range []right{
		{"create", "pulumi.com", "stacks", "", own}, {"create", "auto.pulumi.com", "updates", "", own},
		{"patch", "source.toolkit.fluxcd.io", "gitrepositories", "status", own}, {"get", "", "secrets", "", own}, {"create", "", "pods", "", own},
		{"create", "", "serviceaccounts", "token", own}, {"create", "rbac.authorization.k8s.io", "rolebindings", "", own},
	} {
		g.Eventually(func() (bool, error) { return t.may(ctx, may) }).WithContext(ctx).WithTimeout(patience()).WithPolling(pollInterval).
			Should(BeTrue(), fmt.Sprint(may)) // roles are aggregated by a controller
	}
	not := []right{
		{"patch", "pulumi.com", "stacks", "status", own}, {"patch", "auto.pulumi.com", "workspaces", "status", own},
		{"patch", "auto.pulumi.com", "updates", "status", own}, {"update", "pulumi.com", "stacks", "finalizers", own},
		{"use", "auto.pulumi.com", "workspaces", "rpc", own}, {"get", "", "nodes", "", ""}, {"list", "", "namespaces", "", ""},
	}
	for _, other := range append(others, "flux-system") {
		not = append(not, right{"get", "pulumi.com", "stacks", "", other}, right{"get", "", "secrets", "", other},
			right{"get", "", "pods", "log", other}, right{"create", "source.toolkit.fluxcd.io", "gitrepositories", "", other})
	}
	for _, mayNot := range not {
		allowed, err := t.may(ctx, mayNot)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(allowed).To(BeFalse(), fmt.Sprint(mayNot))
	}
}

func (t *tenant) may(ctx context.Context, r right) (bool, error) {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: r.verb, Group: r.group, Resource: r.resource, Subresource: r.subresource, Namespace: r.namespace,
		},
	}}
	answer, err := t.clientset.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("ask for a right: %w", err)
	}
	return answer.Status.Allowed, nil
}

// victimName is the name of the victim's namespace, Stack and GitRepository.
const victimName = "victim"

// Values that only the victim has. No object of the attacker and no log of the controller may contain one.
const (
	outputCanary     = "output-canary-6e0d"
	secretCanary     = "secret-canary-91ac"
	literalCanary    = "literal-canary-a7c2"
	annotationCanary = "annotation-canary-3f18"
)

// victim is a tenant who only deploys a program.
type victim struct {
	app *localsystem.App
	// url and digest are the location and the digest of the first artifact.
	url, digest string
	// agent is the address of the victim's agent.
	agent string
	// objects has the victim's objects, by kind, as they were before the attacks.
	objects map[string]string
}

// newVictim deploys the victim's Stack.
func newVictim(t *testing.T) *victim {
	g, ctx := NewWithT(t), t.Context()
	v := &victim{}
	var err error
	v.app, err = system.Deploy(ctx, victimName, victimProgram(0), func(stack *pulumiv1.Stack) {
		g.Expect(system.Client.Create(ctx, &corev1.Secret{
			Namespace: victimName, Name: "api", StringData: map[string]string{"token": secretCanary},
		})).To(Succeed())
		stack.Annotations = map[string]string{"example.com/note": annotationCanary}
		stack.Spec.EnvRefs["API_TOKEN"] = pulumiv1.ResourceRef{
			Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: "api", Key: "token"},
		}
		stack.Spec.Secrets = map[string]string{"password": literalCanary}
	})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = system.WaitReady(ctx, v.app)
	g.Expect(err).NotTo(HaveOccurred())
	source := &sourcev1.GitRepository{}
	g.Expect(system.Client.Get(ctx, v.app.Key(), source)).To(Succeed())
	v.url, v.digest = source.Status.Artifact.URL, source.Status.Artifact.Digest
	pod := &corev1.Pod{}
	g.Expect(system.Client.Get(ctx, client.ObjectKey{Namespace: victimName, Name: victimName + "-workspace-0"}, pod)).To(Succeed())
	v.agent = net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(podspec.Port))
	v.objects = v.read(ctx, g)
	return v
}

// victimProgram is the program of the victim. Its outputs are a canary and the number of the commit.
func victimProgram(commit int) gitserver.Files {
	return gitserver.Files{"Pulumi.yaml": fmt.Sprintf("name: victim\nruntime: yaml\noutputs:\n  canary: %s\n  commit: %d\n", outputCanary, commit)}
}

// commit pushes a commit and waits until it is deployed.
func (v *victim) commit(ctx context.Context, g *WithT, number int) {
	_, err := v.app.Repository.Commit(victimProgram(number))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(system.Fetch(ctx, v.app)).To(Succeed())
	g.Eventually(func(g Gomega) {
		stack := &pulumiv1.Stack{}
		g.Expect(system.Client.Get(ctx, v.app.Key(), stack)).To(Succeed())
		g.Expect(string(stack.Status.Outputs["commit"].Raw)).To(Equal(strconv.Itoa(number)), "%+v", stack.Status.Conditions)
		g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded))
	}).WithContext(ctx).WithTimeout(patience()).WithPolling(pollInterval).Should(Succeed())
}

// read returns the victim's objects that no other tenant may change, without the parts that a deployment changes.
func (v *victim) read(ctx context.Context, g *WithT) map[string]string {
	objects := map[string]string{}
	stack, workspace, source := &pulumiv1.Stack{}, &autov1alpha1.Workspace{}, &sourcev1.GitRepository{}
	for _, object := range []client.Object{stack, workspace, source} {
		g.Expect(system.Client.Get(ctx, v.app.Key(), object)).To(Succeed())
	}
	pod, secret := &corev1.Pod{}, &corev1.Secret{}
	g.Expect(system.Client.Get(ctx, client.ObjectKey{Namespace: victimName, Name: victimName + "-workspace-0"}, pod)).To(Succeed())
	g.Expect(system.Client.Get(ctx, client.ObjectKey{Namespace: victimName, Name: victimName + "-workspace-rpc"}, secret)).To(Succeed())
	for name, part := range map[string]any{
		"Stack": []any{stack.UID, stack.Spec, stack.Labels, stack.OwnerReferences}, "Workspace": []any{workspace.UID, workspace.Spec, workspace.OwnerReferences},
		"GitRepository": []any{source.UID, source.Spec}, "Secret": []any{secret.UID, secret.Data},
		"Pod": []any{pod.UID, pod.Spec.Containers, pod.Status.ContainerStatuses[0].RestartCount},
	} {
		content, err := json.Marshal(part)
		g.Expect(err).NotTo(HaveOccurred())
		objects[name] = string(content)
	}
	return objects
}

// expectUnharmed checks that all objects of the victim are unchanged.
func (v *victim) expectUnharmed(ctx context.Context, g *WithT) {
	now := v.read(ctx, g)
	for name, before := range v.objects {
		g.Expect(now[name]).To(Equal(before), name)
	}
	stack := &pulumiv1.Stack{}
	g.Expect(system.Client.Get(ctx, v.app.Key(), stack)).To(Succeed())
	g.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	g.Expect(string(stack.Status.Outputs["canary"].Raw)).To(ContainSubstring(outputCanary))
}

// canaries returns the secrets of the victim, in clear text and encoded.
func canaries() []string {
	var all []string
	for _, canary := range []string{outputCanary, secretCanary, literalCanary, annotationCanary} {
		all = append(all, canary, base64.StdEncoding.EncodeToString([]byte(canary)), hex.EncodeToString([]byte(canary)))
	}
	return all
}

// expectNoCanaries searches everything that the attacker can read, and the log of the controller.
func expectNoCanaries(ctx context.Context, g *WithT, attacker *tenant) {
	for _, namespace := range attacker.namespaces {
		for _, list := range []client.ObjectList{
			&pulumiv1.StackList{}, &pulumiv1.ProgramList{}, &autov1alpha1.WorkspaceList{}, &autov1alpha1.UpdateList{},
			&corev1.EventList{}, &corev1.SecretList{}, &corev1.ConfigMapList{}, &corev1.PodList{},
		} {
			g.Expect(attacker.client.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
			content, err := json.Marshal(list)
			g.Expect(err).NotTo(HaveOccurred())
			for _, canary := range canaries() {
				g.Expect(bytes.Contains(content, []byte(canary))).To(BeFalse(), "%T in %s has %s", list, namespace, canary)
			}
		}
	}
	log, err := system.ControllerLog(ctx, -1)
	g.Expect(err).NotTo(HaveOccurred())
	for _, canary := range canaries() {
		g.Expect(strings.Contains(log, canary)).To(BeFalse(), "the controller logged %s", canary)
	}
}

// webHost is the address of the attacker's web server, which is a pod of the attacker.
const webHost = "web." + attackerName + ".svc.cluster.local:8080"

// maxLog bounds how much of a pod's log is read, in bytes.
const maxLog = 1 << 20

// serveFromTenant starts the attacker's web server, and returns when it is ready.
func serveFromTenant(ctx context.Context, g *WithT, means *pressure.Tenant) {
	g.Expect(means.Serve(ctx)).To(Succeed())
	g.Expect(means.Web).To(Equal(webHost))
	pod := &corev1.Pod{}
	g.Eventually(func(g Gomega) {
		g.Expect(means.Client.Get(ctx, client.ObjectKey{Namespace: attackerName, Name: "web"}, pod)).To(Succeed())
		g.Expect(pod.Status.ContainerStatuses).To(HaveLen(1))
		g.Expect(pod.Status.ContainerStatuses[0].Ready).To(BeTrue(), "%+v", pod.Status)
	}).WithContext(ctx).WithTimeout(patience()).WithPolling(pollInterval).Should(Succeed())
}

// lines returns the rest of each log line of a container that begins with the word.
func (a *attacker) lines(g Gomega, namespace, pod, container, word string) (found []string) {
	stream, err := a.clientset.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{Container: container, LimitBytes: ptr.To[int64](maxLog)}).Stream(a.ctx)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = stream.Close() }()
	content, err := io.ReadAll(stream)
	g.Expect(err).NotTo(HaveOccurred())
	for line := range strings.Lines(string(content)) {
		if rest, begins := strings.CutPrefix(strings.TrimSpace(line), word+" "); begins {
			found = append(found, rest)
		}
	}
	return found
}

// results waits until the log of a container has all results, and returns them.
func (a *attacker) results(namespace, pod, container string) map[string]string {
	a.t.Helper()
	results := map[string]string{}
	a.eventually(func(g Gomega) {
		for _, line := range a.lines(g, namespace, pod, container, "RESULT") {
			what, result, _ := strings.Cut(line, " ")
			results[what] = result
		}
		g.Expect(results).To(HaveKey("end"))
	})
	return results
}

// sawCode checks that the result is the code, and records it.
func (a *attacker) sawCode(results map[string]string, what, code string) {
	a.t.Helper()
	a.Expect(results).To(HaveKeyWithValue(what, HavePrefix(code)))
	a.saw(code)
}

// expectCalled waits until the methods of the attack's agent were called.
func (a *attacker) expectCalled(methods ...string) {
	a.t.Helper()
	a.eventually(func(g Gomega) {
		called := a.lines(g, a.means.Namespace, a.agentPod(), autov1alpha1.PulumiContainerName, "CALLED")
		g.Expect(called).To(ContainElements(methods))
	})
}

// expectRequested waits until the attacker's web server has received a request for each path, or for a path that contains it.
func (a *attacker) expectRequested(paths ...string) {
	a.t.Helper()
	a.eventually(func(g Gomega) {
		requested := strings.Join(a.lines(g, attackerName, "web", "tool", "REQUESTED"), "\n")
		for _, path := range paths {
			g.Expect(requested).To(ContainSubstring(path))
		}
	})
}

// agentPod returns the name of the pod with the attack's agent.
func (a *attacker) agentPod() string { return a.name + "-workspace-0" }

// awaitAgent waits until the container of the attack's agent runs.
func (a *attacker) awaitAgent(namespace string) {
	a.t.Helper()
	pod := &corev1.Pod{Namespace: namespace, Name: a.agentPod()}
	await(a, pod, func(g Gomega, pod *corev1.Pod) {
		g.Expect(pod.Status.ContainerStatuses).NotTo(BeEmpty(), "%+v", pod.Status)
		g.Expect(pod.Status.ContainerStatuses[0].State.Running).NotTo(BeNil(), "%+v", pod.Status)
	})
}

// jsonValues encodes each value.
func jsonValues(values map[string]any) map[string]apiextensionsv1.JSON {
	encoded := map[string]apiextensionsv1.JSON{}
	for key, value := range values {
		content, err := json.Marshal(value)
		if err != nil {
			panic(err) // the values are written in the tests
		}
		encoded[key] = apiextensionsv1.JSON{Raw: content}
	}
	return encoded
}

// visible returns everything that the attacker sees of the attack: the status of its objects, and of those that were created for them, and
// the events about them.
func (a *attacker) visible() string {
	a.t.Helper()
	stacks, workspaces, updates, events := &pulumiv1.StackList{}, &autov1alpha1.WorkspaceList{}, &autov1alpha1.UpdateList{}, &corev1.EventList{}
	for _, list := range []client.ObjectList{stacks, workspaces, updates, events} {
		a.Expect(a.client.List(a.ctx, list, client.InNamespace(a.means.Namespace))).To(Succeed())
	}
	var seen []any
	for i := range stacks.Items {
		if stacks.Items[i].Name == a.name {
			seen = append(seen, stacks.Items[i].Status)
		}
	}
	for i := range workspaces.Items {
		if workspaces.Items[i].Name == a.name {
			seen = append(seen, workspaces.Items[i].Status)
		}
	}
	for i := range updates.Items {
		if updates.Items[i].Spec.WorkspaceName == a.name || updates.Items[i].Name == a.name {
			seen = append(seen, updates.Items[i].Status)
		}
	}
	for i := range events.Items {
		if strings.HasPrefix(events.Items[i].InvolvedObject.Name, a.name) {
			seen = append(seen, events.Items[i].Message)
		}
	}
	content, err := json.Marshal(seen)
	a.Expect(err).NotTo(HaveOccurred())
	return string(content)
}

// expectNotVisible checks that nothing that the attacker sees contains one of the texts.
func (a *attacker) expectNotVisible(texts ...string) {
	a.t.Helper()
	seen := a.visible()
	for _, text := range texts {
		a.Expect(seen).NotTo(ContainSubstring(text))
	}
}
