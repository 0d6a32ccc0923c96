package command

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"
)

// release returns the Deployment of one version.
func release(g Gomega, pod, container string) []*unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	g.Expect(yaml.Unmarshal([]byte("{apiVersion: apps/v1, kind: Deployment, metadata: {name: stack-controller, namespace: flux-system}, spec: {selector: {matchLabels: {app: x}}, "+
		"template: {spec: {"+pod+"containers: [{name: manager, "+container+"}]}}}}"), &object.Object)).To(Succeed())
	return []*unstructured.Unstructured{object}
}

func TestANewReleaseMayChangeWhatOnlyAnEarlierOneHasSet(t *testing.T) {
	g := NewWithT(t)
	scheme := runtime.NewScheme()
	g.Expect(appsv1.AddToScheme(scheme)).To(Succeed())
	var answer error
	c := &cluster{client: fake.NewClientBuilder().WithScheme(scheme).WithReturnManagedFields().WithInterceptorFuncs(interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, object runtime.ApplyConfiguration, options ...client.ApplyOption) error {
			if answer != nil {
				return answer
			}
			return c.Apply(ctx, object, options...)
		},
	}).Build()}
	check := func(objects []*unstructured.Unstructured) error {
		return c.checkSettings(t.Context(), objects, &installation{})
	}
	apply := func(objects []*unstructured.Unstructured, owner string) {
		g.Expect(c.client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(objects[0].DeepCopy()), client.FieldOwner(owner), client.ForceOwnership)).To(Succeed())
	}
	apply(release(g, "nodeSelector: {disk: slow}, ", "image: a, ports: [{name: http, containerPort: 8080, protocol: TCP}], volumeMounts: [{name: data, mountPath: /data}], "+
		"env: [{name: LIMIT, valueFrom: {resourceFieldRef: {resource: limits.memory}}}], args: [--a=1]"), fieldOwner)
	next := release(g, "nodeSelector: {disk: fast}, ", "image: a, ports: [{name: http, containerPort: 8090, protocol: TCP}], volumeMounts: [{name: data, mountPath: /files}], "+
		"env: [{name: LIMIT, valueFrom: {resourceFieldRef: {resource: requests.memory}}}], args: [--a=1, --b=1]")
	g.Expect(check(next)).To(Succeed())
	apply(next, fieldOwner)

	apply(release(g, "nodeSelector: {disk: mine}, ", "volumeMounts: [{name: data, mountPath: /more, subPath: more}], args: [--a=1, --mine=1]"), "kubectl")
	g.Expect(check(next)).To(MatchError(ContainSubstring("which this would take away: .spec.template.spec.nodeSelector, --mine. Upgrade")))

	answer = apierrors.NewTimeoutError("busy", 0)
	g.Expect(check(next)).To(MatchError(ContainSubstring("busy")), "nothing is known of the settings")
	answer = apierrors.NewForbidden(appsv1.Resource("deployments"), "x", nil)
	g.Expect(check(next)).To(Succeed(), "all refusals are shown together")
}
