package pods_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/tests/cluster"
	"github.com/stack-controller/stack-controller/tests/podstage"
)

func TestObjectsOfAWorkspaceThatAreDeletedAreMadeAgain(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "objects-deleted"
	ctx, cancel := context.WithTimeout(t.Context(), healingPatience)
	defer cancel()
	app, recorder := deployRecorded(ctx, t, name)
	before := podOf(ctx, g, name, name)

	begin := time.Now()
	for _, object := range []client.Object{serviceOf(name), rpcSecretOf(name), statefulSetOf(name)} {
		g.Expect(system.Client.Delete(ctx, object)).To(Succeed())
	}
	for _, object := range []client.Object{serviceOf(name), rpcSecretOf(name), statefulSetOf(name)} {
		eventually(ctx, g, func(g Gomega) {
			g.Expect(system.Client.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
			g.Expect(object.GetDeletionTimestamp()).To(BeNil())
			g.Expect(object.GetCreationTimestamp().Time).NotTo(BeTemporally("<", begin.Truncate(time.Second)))
		})
	}
	eventually(ctx, g, func(g Gomega) { g.Expect(podOf(ctx, g, name, name).UID).NotTo(Equal(before.UID)) })
	awaitReadyWorkspace(ctx, g, app.Key())
	t.Logf("ready again after %s: %v", time.Since(begin), recorder.reasons(autov1alpha1.WorkspaceKind, begin))
	_, err := system.Rollout(ctx, app, programWith(name, "two"))
	g.Expect(err).NotTo(HaveOccurred())
}

func TestUpdateGoesOnWithoutServiceAndSecret(t *testing.T) {
	t.Parallel()
	a := deploySleeping(t, "service-deleted", "")
	running := a.begin("seconds: 10", "create start")
	pod := a.pod()
	for _, object := range []client.Object{serviceOf(a.Name), rpcSecretOf(a.Name)} {
		a.Expect(system.Client.Delete(a.ctx, object)).To(Succeed())
	}
	a.expectUndisturbed(running, pod.UID)
	eventually(a.ctx, a.WithT, func(g Gomega) {
		g.Expect(system.Client.Get(a.ctx, client.ObjectKeyFromObject(serviceOf(a.Name)), &corev1.Service{})).To(Succeed())
	})
}

func TestUpdateIsTakenUpWhenItsStatefulSetIsDeleted(t *testing.T) {
	t.Parallel()
	a := deploySleeping(t, "set-deleted", "")
	running := a.begin("seconds: 10", "create start")
	pod := a.pod()
	begin := time.Now()
	a.Expect(system.Client.Delete(a.ctx, statefulSetOf(a.Name), client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
	a.expectGracefulEnd(pod.UID, func() { a.expectRecovery(running, ContainSubstring("pulumi stopped gracefully")) })
	t.Logf("the update had succeeded after %s", time.Since(begin))
}

// TestSecretThatNobodyHasAnyMoreIsMadeAgain runs alone: it replaces the controller, which knew the certificate.
func TestSecretThatNobodyHasAnyMoreIsMadeAgain(t *testing.T) {
	g := NewWithT(t)
	const name = "secret-deleted"
	ctx, cancel := context.WithTimeout(t.Context(), healingPatience)
	defer cancel()
	app, recorder := deployRecorded(ctx, t, name)

	begin := time.Now()
	g.Expect(system.Client.Delete(ctx, rpcSecretOf(name))).To(Succeed())
	_, err := kubectl(ctx, "rollout", "restart", "deployment/"+podstage.ControllerName, "--namespace="+cluster.FluxNamespace)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(system.AwaitController(ctx)).To(Succeed())
	eventually(ctx, g, func(g Gomega) {
		g.Expect(system.Client.Get(ctx, client.ObjectKeyFromObject(rpcSecretOf(name)), &corev1.Secret{})).To(Succeed())
	})
	t.Logf("the Secret was there again after %s", time.Since(begin))
	_, err = system.Rollout(ctx, app, programWith(name, "two"))
	g.Expect(err).NotTo(HaveOccurred())
	t.Logf("an update had succeeded after %s: %v", time.Since(begin), recorder.reasons(autov1alpha1.WorkspaceKind, begin))
}

// The objects of the Workspace of an app of that name.

func serviceOf(name string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name + "-workspace"}}
}

func rpcSecretOf(name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name + "-workspace-rpc"}}
}

func statefulSetOf(name string) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name + "-workspace"}}
}
