// Package pods_test has the tests of the whole system on a real cluster, where every workspace is a pod of its own.
package pods_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/cloud"
	"github.com/stack-controller/stack-controller/tests/framework/cluster"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/podsystem"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// patience bounds what a test waits for: a pod starts within seconds, on a busy machine within a minute.
const patience = 5 * time.Minute

// system is the running system that all tests of the package share. Each test has namespaces of its own.
var system *podsystem.System

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	flag.Parse()
	// The tests mostly wait for pods, so six of them can run at once.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	os.Exit(podsystem.RunTests(runner{m}, podsystem.Options{WithNotificationController: true}, func(s *podsystem.System) { system = s }))
}

// pollInterval is the time between two checks of a condition.
const pollInterval = 100 * time.Millisecond

// eventually retries the assertions until they hold, or until patience is over.
func eventually(ctx context.Context, g *WithT, assertions func(g Gomega)) {
	g.Eventually(assertions).WithContext(ctx).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
}

// kubectlCommand returns a command that runs the real kubectl as administrator.
func kubectlCommand(ctx context.Context, args ...string) (*exec.Cmd, error) {
	path, err := tools.Path(ctx, "kubectl", nil)
	if err != nil {
		return nil, err
	}
	cmd := system.Cluster.Command(ctx, path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+system.Cluster.KubeconfigPath, "KUBECACHEDIR="+filepath.Join(system.Cluster.Dir, "kubectl"))
	return cmd, nil
}

// kubectl runs the real kubectl as administrator and returns its standard output and standard error together, as a terminal shows them.
func kubectl(ctx context.Context, args ...string) (string, error) {
	cmd, err := kubectlCommand(ctx, args...)
	if err != nil {
		return "", err
	}
	output, err := cmd.CombinedOutput()
	if err != nil {
		return string(output), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, output)
	}
	return string(output), nil
}

// runInPod runs a shell command in the container pulumi of the Workspace's pod, as a user does, and returns what the command prints.
func runInPod(ctx context.Context, namespace, workspace, command string) (string, error) {
	return kubectl(ctx, "exec", "--namespace="+namespace, workspace+"-workspace-0", "--container=pulumi", "--", "sh", "-c", command)
}

// apply applies a manifest of testdata, with each ${NAME} in it replaced by its value.
func apply(ctx context.Context, g *WithT, path string, values map[string]string) {
	content, err := os.ReadFile(filepath.Join("testdata", path))
	g.Expect(err).NotTo(HaveOccurred())
	manifest := os.Expand(string(content), func(name string) string {
		g.Expect(values).To(HaveKey(name))
		return values[name]
	})
	_, err = system.Cluster.KubectlInput(ctx, manifest, "apply", "--filename=-")
	g.Expect(err).NotTo(HaveOccurred())
}

// createNamespace creates a namespace that enforces the restricted profile and has a claim for the state and the passphrase. The namespace
// is removed when the test ends.
func createNamespace(t *testing.T, g *WithT, name string) {
	t.Helper()
	ctx := t.Context()
	removeNamespaceAtEnd(t, g, name)
	namespace := &corev1.Namespace{Name: name, Labels: system.NamespaceLabels}
	g.Expect(system.Client.Create(ctx, namespace)).To(Succeed())
	equip(ctx, g, name)
}

// equip creates the claim for the state, and the Secret with the passphrase, in a namespace.
func equip(ctx context.Context, g *WithT, namespace string) {
	g.Expect(system.ClaimState(ctx, namespace)).To(Succeed())
	g.Expect(system.Client.Create(ctx, secret(namespace, localsystem.PassphraseSecret, localsystem.PassphraseKey, passphraseCanary))).To(Succeed())
}

// named replaces the project name "app" by the given name. All namespaces share one backend, in which two projects of the same name would
// be the same project.
func named(name string, files gitserver.Files) gitserver.Files {
	renamed := strings.Replace(files["Pulumi.yaml"], "name: app\n", "name: "+name+"\n", 1)
	return gitserver.Files{"Pulumi.yaml": renamed}
}

// program is a project with one output.
func program(value string) gitserver.Files {
	return gitserver.Files{"Pulumi.yaml": "name: app\nruntime: yaml\noutputs:\n  value: " + value + "\n"}
}

// deploy deploys a program in a namespace of that name, which is removed when the test ends, and returns when the Stack is ready.
func deploy(ctx context.Context, t *testing.T, g *WithT, name string, files gitserver.Files, changes ...func(*pulumiv1.Stack)) *localsystem.App {
	t.Helper()
	removeNamespaceAtEnd(t, g, name)
	app, err := system.Deploy(ctx, name, files, changes...)
	g.Expect(err).NotTo(HaveOccurred())
	waitReady(ctx, g, app)
	return app
}

// waitReady waits until the Stack is ready, and bounds the wait.
func waitReady(ctx context.Context, g *WithT, app *localsystem.App) *pulumiv1.Stack {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stack, err := system.WaitReady(ctx, app)
	g.Expect(err).NotTo(HaveOccurred())
	return stack
}

func secret(namespace, name, key, value string) *corev1.Secret {
	return &corev1.Secret{Namespace: namespace, Name: name, StringData: map[string]string{key: value}}
}

// stateEnv returns the environment variables for the backend, for a Workspace that no Stack created.
func stateEnv() []corev1.EnvVar {
	return []corev1.EnvVar{
		{Name: "PULUMI_BACKEND_URL", Value: system.BackendURL},
		{Name: "PULUMI_CONFIG_PASSPHRASE", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			Name: localsystem.PassphraseSecret, Key: localsystem.PassphraseKey,
		}}},
	}
}

// podOf returns the pod of the Workspace.
func podOf(ctx context.Context, g Gomega, namespace, workspace string) *corev1.Pod {
	pod := &corev1.Pod{}
	g.Expect(system.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: workspace + "-workspace-0"}, pod)).To(Succeed())
	return pod
}

// awaitStack waits until the assertions hold for the Stack, and returns it.
func awaitStack(ctx context.Context, g *WithT, key client.ObjectKey, test func(g Gomega, stack *pulumiv1.Stack)) *pulumiv1.Stack {
	stack := &pulumiv1.Stack{}
	eventually(ctx, g, func(g Gomega) {
		*stack = pulumiv1.Stack{}
		g.Expect(system.Client.Get(ctx, key, stack)).To(Succeed())
		test(g, stack)
	})
	return stack
}

// change edits a Stack.
func change(ctx context.Context, g *WithT, key client.ObjectKey, edit func(*pulumiv1.Stack)) {
	eventually(ctx, g, func(g Gomega) {
		stack := &pulumiv1.Stack{}
		g.Expect(system.Client.Get(ctx, key, stack)).To(Succeed())
		edit(stack)
		g.Expect(system.Client.Update(ctx, stack)).To(Succeed())
	})
}

// request asks for an update of the Stack, waits for its success and returns the Stack.
func request(ctx context.Context, g *WithT, key client.ObjectKey, token string) *pulumiv1.Stack {
	change(ctx, g, key, func(stack *pulumiv1.Stack) {
		metav1.SetMetaDataAnnotation(&stack.ObjectMeta, pulumiv1.ReconcileRequestAnnotation, token)
	})
	return awaitStack(ctx, g, key, func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(stack.Status.ObservedReconcileRequest).To(Equal(token))
		g.Expect(stack.Status.LastUpdate.ReconcileRequest).To(Equal(token))
		g.Expect(stack.Status.CurrentUpdate).To(BeNil())
		g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded), stack.Status.LastUpdate.Message)
	})
}

// awaitEnd waits until the Update has ended.
func awaitEnd(ctx context.Context, g *WithT, update *autov1alpha1.Update) {
	eventually(ctx, g, func(g Gomega) {
		g.Expect(system.Client.Get(ctx, client.ObjectKeyFromObject(update), update)).To(Succeed())
		g.Expect(update.IsComplete()).To(BeTrue(), "%+v", update.Status)
	})
}

// awaitNone waits until the namespace has no objects of the kind.
func awaitNone(t *testing.T, g *WithT, namespace string, list client.ObjectList) {
	t.Helper()
	eventually(t.Context(), g, func(g Gomega) {
		g.Expect(system.Client.List(t.Context(), list, client.InNamespace(namespace))).To(Succeed())
		g.Expect(apimeta.LenList(list)).To(BeZero())
	})
}

// journal returns the lines of a resource's journal, a file of that name in the state directory. It has one line for the start and one for
// the end of everything that was done to the resource.
func journal(g Gomega, name string) []string {
	content, err := os.ReadFile(filepath.Join(system.StateDir(), name))
	if os.IsNotExist(err) {
		return nil
	}
	g.Expect(err).NotTo(HaveOccurred())
	return strings.Split(strings.TrimSpace(string(content)), "\n")
}

// exists reports whether there is a file in the state directory, which pods see at /state.
func exists(g Gomega, name string) bool {
	_, err := os.Stat(filepath.Join(system.StateDir(), name))
	if !os.IsNotExist(err) {
		g.Expect(err).NotTo(HaveOccurred())
	}
	return err == nil
}

// isGone reports whether the object no longer exists.
func isGone(ctx context.Context, object client.Object) bool {
	return apierrors.IsNotFound(system.Client.Get(ctx, client.ObjectKeyFromObject(object), object))
}

// Secret values that the tests plant. Only a component that needs a value may see it, and no component may write one anywhere else.
const (
	passphraseCanary = "passphrase-canary-7f3b"
	tokenCanary      = "token-canary-c04e"
	secretCanary     = "secret-canary-91ac"
	// passwordCanary is in the program of the walkthrough, as a secret.
	passwordCanary = "password-canary-5d21"
	// systemPassphrase is the passphrase that localsystem.Apps use.
	systemPassphrase = "correct horse battery staple"
)

// runner is a *testing.M whose Run ends with a search for secret values.
type runner struct{ tests interface{ Run() int } }

// Run runs the tests. It fails when a secret value was written where it must not be.
func (r runner) Run() int {
	code := r.tests.Run()
	if leaks, err := findCanaries(context.Background(), metav1.NamespaceAll); err != nil || len(leaks) > 0 {
		return suite.Failed(errors.Join(err, fmt.Errorf("secrets were written to %v", leaks)))
	}
	return code
}

// expectNoCanaries searches a namespace that is about to be removed for secret values.
func expectNoCanaries(t *testing.T, namespace string) {
	leaks, err := findCanaries(context.WithoutCancel(t.Context()), namespace)
	if err != nil || len(leaks) > 0 {
		t.Error("secrets were written to:", leaks, err)
	}
}

// findCanaries returns the logs of the controller's pod and of workspace pods, and the kinds of objects other than Secrets, that contain a
// secret value, in clear or encoded. It searches one namespace, or all of them.
func findCanaries(ctx context.Context, namespace string) (found []string, err error) {
	pods := &corev1.PodList{}
	if err := system.Client.List(ctx, pods, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	for i := range pods.Items {
		leaks, err := findCanariesInLogs(ctx, &pods.Items[i])
		if err != nil {
			return nil, err
		}
		found = append(found, leaks...)
	}
	for _, list := range []client.ObjectList{
		&pulumiv1.StackList{}, &autov1alpha1.WorkspaceList{}, &autov1alpha1.UpdateList{}, &corev1.EventList{}, &eventsv1.EventList{},
		&corev1.ConfigMapList{}, pods,
	} {
		if err := system.Client.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
		content, err := json.Marshal(list)
		if err != nil {
			return nil, fmt.Errorf("encode %T: %w", list, err)
		}
		if hasCanary(content) {
			found = append(found, fmt.Sprintf("%T", list))
		}
	}
	return found, nil
}

// findCanariesInLogs returns the containers of the pod whose logs contain a secret value. It searches only pods of the controller and of
// workspaces.
func findCanariesInLogs(ctx context.Context, pod *corev1.Pod) (found []string, err error) {
	isController := pod.Namespace == cluster.FluxNamespace && pod.Labels["app"] == podsystem.ControllerName
	isWorkspace := pod.Labels[autov1alpha1.ComponentLabel] == autov1alpha1.ComponentWorkspace
	if !isController && !isWorkspace {
		return nil, nil
	}
	for _, status := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		if status.State.Running == nil && status.State.Terminated == nil {
			continue // the container has written nothing
		}
		args := []string{"logs", "--namespace=" + pod.Namespace, pod.Name, "--container=" + status.Name}
		runs := [][]string{args}
		if status.RestartCount > 0 {
			runs = append(runs, append(args[:len(args):len(args)], "--previous"))
		}
		for _, run := range runs {
			log, err := kubectl(ctx, run...)
			if err != nil && !isGone(ctx, pod.DeepCopy()) && !strings.Contains(err.Error(), "previous terminated container") {
				return nil, err
			}
			if hasCanary([]byte(log)) {
				found = append(found, "the log of "+pod.Namespace+"/"+pod.Name+"/"+status.Name)
			}
		}
	}
	return found, nil
}

func hasCanary(content []byte) bool {
	for _, canary := range []string{passphraseCanary, tokenCanary, secretCanary, passwordCanary, systemPassphrase, cloud.IssuedPrefix} {
		encoded := base64.StdEncoding.EncodeToString([]byte(canary))
		if bytes.Contains(content, []byte(canary)) || bytes.Contains(content, []byte(encoded)) {
			return true
		}
	}
	return false
}
