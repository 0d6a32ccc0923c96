package tenancy_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/runtime/pod/podspec"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage"
)

// victimName is the name of the victim's namespace, Stack and GitRepository.
const victimName = "victim"

// Values that only the victim has. None may be in anything of the attacker, nor in a log of the controller.
const (
	outputCanary     = "output-canary-6e0d"
	secretCanary     = "secret-canary-91ac"
	literalCanary    = "literal-canary-a7c2"
	annotationCanary = "annotation-canary-3f18"
)

// victim is a tenant who only wants to deploy.
type victim struct {
	app *stage.App
	// url and digest are those of the first artifact.
	url, digest string
	// agent is the address of the agent.
	agent string
	// objects are those of the victim, by kind and name, as they were before the attacks.
	objects map[string]string
}

// newVictim deploys the victim's Stack.
func newVictim(t *testing.T) *victim {
	g, ctx := NewWithT(t), t.Context()
	v := &victim{}
	var err error
	v.app, err = system.Deploy(ctx, victimName, victimProgram(0), func(stack *pulumiv1.Stack) {
		g.Expect(system.Client.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: victimName, Name: "api"}, StringData: map[string]string{"token": secretCanary},
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
	}).WithContext(ctx).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
}

// read returns the objects of the victim that nobody else may change, with the part that a deployment does not change.
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

// expectUnharmed checks that everything of the victim is as it was.
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

// canaries are the secrets of the victim, in clear and encoded.
func canaries() []string {
	var all []string
	for _, canary := range []string{outputCanary, secretCanary, literalCanary, annotationCanary} {
		all = append(all, canary, base64.StdEncoding.EncodeToString([]byte(canary)), hex.EncodeToString([]byte(canary)))
	}
	return all
}

// expectNoCanaries searches everything that the attacker can read.
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
