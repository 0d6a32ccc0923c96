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
	"github.com/stack-controller/stack-controller/tests/suite"
)

func TestObjectsOfAWorkspaceThatAreDeletedAreMadeAgain(t *testing.T) {
	suite.Long(t, "a further state of a pod")
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
	suite.Long(t, "a further state of a pod")
	t.Parallel()
	a := deploySleeping(t, "service-deleted", "")
	running := a.begin(a.untilReleased(), "create start")
	pod := a.pod()
	for _, object := range []client.Object{serviceOf(a.Name), rpcSecretOf(a.Name)} {
		a.Expect(system.Client.Delete(a.ctx, object)).To(Succeed())
	}
	a.expectUndisturbed(running, pod.UID)
	eventually(a.ctx, a.WithT, func(g Gomega) {
		g.Expect(system.Client.Get(a.ctx, client.ObjectKeyFromObject(serviceOf(a.Name)), &corev1.Service{})).To(Succeed())
	})
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
