package pods_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// pollInterval is how often a test looks.
const pollInterval = 100 * time.Millisecond

// eventually retries the assertions until they hold, or until patience is at its end.
func eventually(ctx context.Context, g *WithT, assertions func(g Gomega)) {
	g.Eventually(assertions).WithContext(ctx).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
}

// kubectlCommand is the real kubectl, as administrator.
func kubectlCommand(ctx context.Context, args ...string) (*exec.Cmd, error) {
	path, err := tools.Path(ctx, "kubectl", nil)
	if err != nil {
		return nil, err
	}
	cmd := system.Cluster.Command(ctx, path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+system.Cluster.KubeconfigPath, "KUBECACHEDIR="+filepath.Join(system.Cluster.Dir, "kubectl"))
	return cmd, nil
}

// kubectl runs the real kubectl as administrator and returns all that it writes, as one sees it in a terminal.
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

// runInPod runs a shell command in the container pulumi of the Workspace's pod, as people do it, and returns what it prints.
func runInPod(ctx context.Context, namespace, workspace, command string) (string, error) {
	return kubectl(ctx, "exec", "--namespace="+namespace, workspace+"-workspace-0", "--container=pulumi", "--", "sh", "-c", command)
}

// apply applies a manifest of testdata with the ${NAME} in it replaced.
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

// createNamespace makes a namespace that enforces the restricted profile, with the state and the passphrase for it, until the
// test ends.
func createNamespace(t *testing.T, g *WithT, name string) {
	t.Helper()
	ctx := t.Context()
	removeNamespaceAtEnd(t, g, name)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: system.NamespaceLabels}}
	g.Expect(system.Client.Create(ctx, namespace)).To(Succeed())
	equip(ctx, g, name)
}

// equip makes the state and the passphrase for it in a namespace.
func equip(ctx context.Context, g *WithT, namespace string) {
	g.Expect(system.ClaimState(ctx, namespace)).To(Succeed())
	g.Expect(system.Client.Create(ctx, secret(namespace, stage.PassphraseSecret, stage.PassphraseKey, passphraseCanary))).To(Succeed())
}

// named gives a project that is called "app" a name of its own: all namespaces share one state, in which two projects of one
// name would be one.
func named(name string, files gitserver.Files) gitserver.Files {
	renamed := strings.Replace(files["Pulumi.yaml"], "name: app\n", "name: "+name+"\n", 1)
	return gitserver.Files{"Pulumi.yaml": renamed}
}

// program is a project with one output.
func program(value string) gitserver.Files {
	return gitserver.Files{"Pulumi.yaml": "name: app\nruntime: yaml\noutputs:\n  value: " + value + "\n"}
}

// deploy deploys a program in a namespace of the name, until the test ends, and returns when its Stack is ready.
func deploy(ctx context.Context, t *testing.T, g *WithT, name string, files gitserver.Files, changes ...func(*pulumiv1.Stack)) *stage.App {
	t.Helper()
	removeNamespaceAtEnd(t, g, name)
	app, err := system.Deploy(ctx, name, files, changes...)
	g.Expect(err).NotTo(HaveOccurred())
	waitReady(ctx, g, app)
	return app
}

// waitReady waits until the Stack is ready, and bounds the wait.
func waitReady(ctx context.Context, g *WithT, app *stage.App) *pulumiv1.Stack {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stack, err := system.WaitReady(ctx, app)
	g.Expect(err).NotTo(HaveOccurred())
	return stack
}

func secret(namespace, name, key, value string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, StringData: map[string]string{key: value}}
}

// stateEnv are the variables of the state for a Workspace that no Stack made.
func stateEnv() []corev1.EnvVar {
	return []corev1.EnvVar{
		{Name: "PULUMI_BACKEND_URL", Value: system.BackendURL},
		{Name: "PULUMI_CONFIG_PASSPHRASE", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: stage.PassphraseSecret}, Key: stage.PassphraseKey,
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

// journal has a line for the begin and one for the end of all that was done to a resource with a file of that name in the state directory.
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

// isGone reports whether the object does not exist any more.
func isGone(ctx context.Context, object client.Object) bool {
	return apierrors.IsNotFound(system.Client.Get(ctx, client.ObjectKeyFromObject(object), object))
}
