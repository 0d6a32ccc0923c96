package cli_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
)

// deployment is one whose pods are nowhere.
func deployment(s *scene.Scene, name, image string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Name, Name: name, Labels: map[string]string{
			"kustomize.toolkit.fluxcd.io/name": "operators", "kustomize.toolkit.fluxcd.io/namespace": "flux-system",
		}},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "manager", Image: image}}},
		}},
	}
}

// taken is a Stack that the operator deployed, and that needs changes.
func taken(s *scene.Scene) *pulumiv1.Stack {
	return &pulumiv1.Stack{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Name, Name: "taken", Labels: map[string]string{"recorded": "true"}},
		Spec: pulumiv1.StackSpec{
			Stack: "dev", DestroyOnFinalize: true, GitSource: pulumiv1.GitSource{ProjectRepo: "git@git.example.com:acme/infrastructure", Branch: "main"},
			EnvRefs: map[string]pulumiv1.ResourceRef{
				"HOME_DIR": {Type: pulumiv1.ResourceRefEnv, Env: &pulumiv1.EnvSelector{Name: "HOME"}},
				"TOKEN":    {Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Namespace: "elsewhere", Name: "token", Key: "token"}},
				"REGION":   {Type: pulumiv1.ResourceRefLiteral, LiteralRef: &pulumiv1.LiteralRef{Value: "eu"}},
			},
		},
	}
}

func TestMoveFromTheOperatorIsPlannedAndItsStepsCanBeUndone(t *testing.T) {
	s := scene.New(t, system, "moving", scene.Patience)
	s.Enter(nil, taken(s), deployment(s, "operator", "registry.example.com/pulumi/pulumi-kubernetes-operator:v2.9.0"), deployment(s, "web", "nginx"))

	answer := ask(s, "migrate", "plan")
	s.Expect(answer.code).To(Equal(0), answer.err)
	s.Expect(strings.Join(strings.Fields(answer.out), " ")).To(And(
		ContainSubstring("Pulumi Kubernetes Operator: Deployment moving/operator, 1 replicas,"),
		ContainSubstring("suspend Kustomization flux-system/operators first, which would restore it"), Not(ContainSubstring("moving/web")),
		ContainSubstring("Stop the operator: flux pulumi migrate stop operator -n moving")))
	s.Expect(answer.out).To(MatchRegexp(`(?m)^moving +taken +Unknown +git +True +4$`))
	for _, note := range []string{"the host key of its git server has to be known", "envRefs[HOME_DIR] of type Env is rejected",
		"envRefs[TOKEN] names a Secret in namespace elsewhere", "it is not Ready"} {
		s.Expect(answer.err).To(ContainSubstring("⚠ Stack moving/taken: " + note))
	}

	s.Expect(ask(s, "migrate", "stop", "web").err).To(ContainSubstring("neither the operator's nor stack-controller's"))
	ended := make(chan string)
	go func() { ended <- ask(s, "migrate", "stop", "operator").err }()
	stopped := &appsv1.Deployment{}
	s.Eventually(func() int32 { s.Get("operator", stopped); return *stopped.Spec.Replicas }).Should(BeZero())
	stopped.Status.ObservedGeneration = stopped.Generation // as its controller does when the pods are gone
	s.Expect(system.Client.Status().Update(s.Context(), stopped)).To(Succeed())
	s.Eventually(ended).Should(Receive(ContainSubstring("✔ Deployment moving/operator has stopped")))

	stack := &pulumiv1.Stack{}
	s.Get("taken", stack)
	before := stack.DeepCopy()
	stack.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: pulumiv1.ProcessingCompletedReason, LastTransitionTime: metav1.Now()}}
	s.Expect(system.Client.Status().Patch(s.Context(), stack, client.MergeFrom(before), client.FieldOwner("stack-controller"))).To(Succeed())
	s.Expect(ask(s, "migrate", "back", "--dry-run").out).To(ContainSubstring("Stack moving/taken: would be handed back"))
	answer = ask(s, "migrate", "back")
	s.Expect(answer.code).To(Equal(0), answer.err)
	s.Expect(answer.out).To(And(ContainSubstring("Stack moving/taken: handed back"), Not(ContainSubstring("apps/"))))
}
