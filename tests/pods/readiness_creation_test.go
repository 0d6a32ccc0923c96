package pods_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/suite"
)

func TestTroubleWithTheCreationOfThePodIsShownAndEndsWithItsCause(t *testing.T) {
	suite.Long(t, "a further state of a pod")
	t.Parallel()
	playTroubles(t, map[string]trouble{
		"quota-exceeded":        exceeded(corev1.ResourcePods, "0", "1", "the pod cannot be created"),
		"set-quota-exceeded":    exceeded("count/statefulsets.apps", "0", "1", "the API server refuses, trying again", "count/statefulsets.apps=1"),
		"secret-quota-exceeded": exceeded("count/secrets", "1", "2", "the API server refuses, trying again", "count/secrets=1"), // that of the passphrase is the first one
		"limit-range": {
			provoke: func(ctx context.Context, g *WithT, stack *pulumiv1.Stack) {
				g.Expect(system.Client.Create(ctx, memoryLimits(stack.Namespace))).To(Succeed())
				pulumi := &podSpecOf(stack).Containers[0]
				pulumi.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
			},
			reason: autov1alpha1.PodCreationFailedReason,
			says:   []string{"the pod cannot be created", "maximum memory usage per Container is 512Mi, but limit is 1Gi"},
			heal: func(ctx context.Context, g *WithT, key client.ObjectKey) {
				g.Expect(system.Client.Delete(ctx, memoryLimits(key.Namespace))).To(Succeed())
			},
		},
		"account-missing": {
			provoke: func(_ context.Context, _ *WithT, stack *pulumiv1.Stack) { stack.Spec.ServiceAccountName = "late" },
			reason:  autov1alpha1.ServiceAccountNotFoundReason,
			says:    []string{"the pod cannot be created", `serviceaccount "late" not found`},
			heal: func(ctx context.Context, g *WithT, key client.ObjectKey) {
				account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "late"}}
				g.Expect(system.Client.Create(ctx, account)).To(Succeed())
			},
		},
		"pod-security": {
			provoke: func(_ context.Context, _ *WithT, stack *pulumiv1.Stack) {
				pod := podSpecOf(stack)
				pod.Containers = append(pod.Containers, corev1.Container{
					Name: "privileged", Image: system.Images.Busybox.Reference, ImagePullPolicy: corev1.PullIfNotPresent,
					Command:         []string{"sleep", "86400"},
					SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)},
				})
			},
			reason: autov1alpha1.PodSecurityViolationReason,
			says:   []string{"the pod cannot be created", `violates PodSecurity "restricted:latest"`, `container "privileged" must not set securityContext.privileged=true`},
			heal: func(ctx context.Context, g *WithT, key client.ObjectKey) {
				enforce(ctx, g, key.Namespace, "privileged")
			},
		},
		"baseline": {
			provoke: func(_ context.Context, _ *WithT, stack *pulumiv1.Stack) {
				stack.Spec.WorkspaceTemplate.Spec.SecurityProfile = autov1alpha1.SecurityProfileBaseline
			},
			reason: autov1alpha1.PodSecurityViolationReason,
			says:   []string{"the pod cannot be created", `violates PodSecurity "restricted:latest"`},
			heal:   func(ctx context.Context, g *WithT, key client.ObjectKey) { enforce(ctx, g, key.Namespace, "baseline") },
			then: func(g *WithT, pod *corev1.Pod) {
				g.Expect(pod.Spec.SecurityContext.RunAsNonRoot).To(BeNil())
				g.Expect(pod.Spec.SecurityContext.SeccompProfile.Type).To(Equal(corev1.SeccompProfileTypeRuntimeDefault))
			},
		},
		"template-invalid": {
			provoke: func(_ context.Context, _ *WithT, stack *pulumiv1.Stack) {
				podSpecOf(stack).NodeSelector = map[string]string{"no label": "x"}
			},
			reason:  autov1alpha1.ObjectRejectedReason,
			says:    []string{"the API server refuses", "nodeSelector", "no label"},
			stalled: true,
			heal: func(ctx context.Context, g *WithT, key client.ObjectKey) {
				change(ctx, g, key, func(stack *pulumiv1.Stack) { podSpecOf(stack).NodeSelector = nil })
			},
		},
	})
}

// exceeded is the trouble that a quota allows too few objects until it allows more.
func exceeded(what corev1.ResourceName, few, enough string, says ...string) trouble {
	return trouble{
		provoke: func(ctx context.Context, g *WithT, stack *pulumiv1.Stack) {
			g.Expect(system.Client.Create(ctx, quota(stack.Namespace, what, few))).To(Succeed())
		},
		reason: autov1alpha1.QuotaExceededReason,
		says:   append(says, "exceeded quota: quota"),
		heal: func(ctx context.Context, g *WithT, key client.ObjectKey) {
			g.Expect(system.Client.Update(ctx, quota(key.Namespace, what, enough))).To(Succeed())
		},
	}
}

// enforce has the namespace enforce a level of pod security.
func enforce(ctx context.Context, g *WithT, namespace, level string) {
	_, err := kubectl(ctx, "label", "--overwrite", "namespace", namespace, enforceLabel+"="+level)
	g.Expect(err).NotTo(HaveOccurred())
}

// quota allows so many objects.
func quota(namespace string, what corev1.ResourceName, count string) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "quota"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{what: resource.MustParse(count)}},
	}
}

// memoryLimits allows containers with little memory.
func memoryLimits(namespace string) *corev1.LimitRange {
	return &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "memory"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")},
		}}},
	}
}
