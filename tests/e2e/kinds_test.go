package e2e_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// The sources are suspended, so that source-controller leaves the artifact in their status alone.
func TestStackFollowsEveryKindOfSourceWhateverVersionItNames(t *testing.T) {
	for _, test := range []struct {
		kind, apiVersion string
		source           client.Object
		offer            func(client.Object, string)
	}{
		{
			kind: sourcev1.OCIRepositoryKind, apiVersion: "source.toolkit.fluxcd.io/v1beta2",
			source: &sourcev1.OCIRepository{Spec: sourcev1.OCIRepositorySpec{URL: "oci://registry.example/app", Suspend: true, Interval: metav1.Duration{Duration: time.Hour}}},
			offer: func(object client.Object, name string) {
				object.(*sourcev1.OCIRepository).Status.Artifact = artifacts.put("latest@sha256:1", packed(yamlProgram(name, "outputs:", "  x: 1")))
			},
		},
		{
			kind: sourcev1.BucketKind, apiVersion: "source.toolkit.fluxcd.io/v1",
			source: &sourcev1.Bucket{Spec: sourcev1.BucketSpec{BucketName: "app", Endpoint: "s3.example", Suspend: true, Interval: metav1.Duration{Duration: time.Hour}}},
			offer: func(object client.Object, name string) {
				object.(*sourcev1.Bucket).Status.Artifact = artifacts.put("sha256:2", packed(yamlProgram(name, "outputs:", "  x: 1")))
			},
		},
	} {
		t.Run(test.kind, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			name := map[string]string{sourcev1.OCIRepositoryKind: "kind-oci", sourcev1.BucketKind: "kind-bucket"}[test.kind]
			g.Expect(start(t.Context(), name, nil, func(s *pulumiv1.Stack) {
				s.Spec.FluxSource.SourceRef.Kind, s.Spec.FluxSource.SourceRef.APIVersion = test.kind, test.apiVersion
			})).To(Succeed())
			await(t.Context(), g, name, notReady(pulumiv1.SourceNotFoundReason))

			test.source.SetNamespace(name)
			test.source.SetName(name)
			g.Expect(system.Client.Create(t.Context(), test.source)).To(Succeed())
			before := test.source.DeepCopyObject().(client.Object)
			test.offer(test.source, name)
			g.Expect(system.Client.Status().Patch(t.Context(), test.source, client.MergeFrom(before))).To(Succeed())
			await(t.Context(), g, name, ready(""))
		})
	}
}
