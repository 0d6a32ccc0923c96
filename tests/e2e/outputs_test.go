package e2e_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/outputobject"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
)

func TestOutputsAreInObjectsThatOthersCanUse(t *testing.T) {
	p := begin(t, "output-objects")
	program := p.yaml("config:", "  password: {type: string, secret: true}", "outputs:", "  url: https://a", "  hidden: ${password}", "  nodes: [{ip: 10.0.0.1}]")
	artifact := p.put(program)
	p.start(artifact, usesPassword, func(s *pulumiv1.Stack) {
		s.Spec.DestroyOnFinalize = true
		s.Spec.Outputs = []pulumiv1.OutputObject{
			{Name: "all"},
			{Kind: pulumiv1.OutputConfigMap, Name: "public", Keys: []pulumiv1.OutputKey{{Key: "NODE", Output: "nodes", Path: "[0].ip"}}},
		}
	})
	stack := p.Await(statuscheck.NotReady(pulumiv1.OutputsNotWrittenReason))
	p.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded))
	updates := p.Updates()

	role, binding := outputobject.Grant(stack, outputobject.Names(stack),
		rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: localsystem.Namespace, Name: "stack-controller"})
	p.Succeed(system.Client.Create(t.Context(), role))
	p.Succeed(system.Client.Create(t.Context(), binding))
	stack = p.Await(ready(artifact.Digest))
	key := client.ObjectKey{Namespace: p.Name, Name: "all"}
	all, public := &corev1.Secret{}, &corev1.ConfigMap{}
	p.Succeed(system.Client.Get(t.Context(), key, all))
	p.Expect(all.Data).To(Equal(map[string][]byte{"url": []byte("https://a"), "hidden": []byte(secretCanary), "nodes": []byte(`[{"ip":"10.0.0.1"}]`)}))
	p.Succeed(system.Client.Get(t.Context(), client.ObjectKey{Namespace: p.Name, Name: "public"}, public))
	p.Expect(public.Data).To(Equal(map[string]string{"NODE": "10.0.0.1"}))

	p.Succeed(system.Client.Delete(t.Context(), all))
	p.Eventually(func() error { return system.Client.Get(t.Context(), key, &corev1.Secret{}) }).Should(Succeed(), "it is restored")
	p.Await(ready(artifact.Digest))
	p.Expect(p.Updates()).To(HaveLen(len(updates)), "without an update")

	p.Succeed(system.Client.Delete(t.Context(), stack))
	p.Eventually(func() bool {
		return apierrors.IsNotFound(system.Client.Get(t.Context(), key, all)) &&
			apierrors.IsNotFound(system.Client.Get(t.Context(), client.ObjectKeyFromObject(public), public))
	}).Should(BeTrue(), "they go with their Stack")
}
