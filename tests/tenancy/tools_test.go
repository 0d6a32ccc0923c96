package tenancy_test

import (
	"context"
	"encoding/json"
	"io"
	"strings"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/tenancy/pressure"
)

// webHost is where the attacker's web server is, which is a pod of the attacker.
const webHost = "web." + attackerName + ".svc.cluster.local:8080"

// maxLog bounds what is read of a pod's log, in bytes.
const maxLog = 1 << 20

// serveFromTenant starts the attacker's web server and returns when it answers.
func serveFromTenant(ctx context.Context, g *WithT, means *pressure.Tenant) {
	g.Expect(means.Serve(ctx)).To(Succeed())
	g.Expect(means.Web).To(Equal(webHost))
	pod := &corev1.Pod{}
	g.Eventually(func(g Gomega) {
		g.Expect(means.Client.Get(ctx, client.ObjectKey{Namespace: attackerName, Name: "web"}, pod)).To(Succeed())
		g.Expect(pod.Status.ContainerStatuses).To(HaveLen(1))
		g.Expect(pod.Status.ContainerStatuses[0].Ready).To(BeTrue(), "%+v", pod.Status)
	}).WithContext(ctx).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
}

// lines returns what follows the word in the lines that a container has logged and that begin with it.
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

// results waits until the log of a container has the results of everything, and returns them.
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

// expectCalled waits until these methods of the agent of the attack were called.
func (a *attacker) expectCalled(methods ...string) {
	a.t.Helper()
	a.eventually(func(g Gomega) {
		called := a.lines(g, a.means.Namespace, a.agentPod(), autov1alpha1.PulumiContainerName, "CALLED")
		g.Expect(called).To(ContainElements(methods))
	})
}

// expectRequested waits until the attacker's web server was asked for each of these, which are parts of paths.
func (a *attacker) expectRequested(paths ...string) {
	a.t.Helper()
	a.eventually(func(g Gomega) {
		requested := strings.Join(a.lines(g, attackerName, "web", "tool", "REQUESTED"), "\n")
		for _, path := range paths {
			g.Expect(requested).To(ContainSubstring(path))
		}
	})
}

// agentPod is the name of the pod with the agent of the attack.
func (a *attacker) agentPod() string { return a.name + "-workspace-0" }

// awaitAgent waits until the agent of the attack runs.
func (a *attacker) awaitAgent(namespace string) {
	a.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: a.agentPod()}}
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
			panic(err) // they are written here
		}
		encoded[key] = apiextensionsv1.JSON{Raw: content}
	}
	return encoded
}

// visible is everything that the attacker sees of the attack: its objects, those made for them, and the events about them.
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

// expectUntold checks that nothing which the attacker sees has one of the texts.
func (a *attacker) expectUntold(texts ...string) {
	a.t.Helper()
	seen := a.visible()
	for _, text := range texts {
		a.Expect(seen).NotTo(ContainSubstring(text))
	}
}
