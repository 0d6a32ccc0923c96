package e2e_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// The sources are suspended, so that source-controller leaves the artifact in their status alone.
func TestStackFollowsEveryKindOfSourceWhateverVersionItNames(t *testing.T) {
	t.Parallel()
	hourly := metav1.Duration{Duration: time.Hour}
	for name, test := range map[string]struct {
		kind, apiVersion string
		source           client.Object
		offer            func(client.Object, *meta.Artifact)
	}{
		"kind-oci": {
			kind: sourcev1.OCIRepositoryKind, apiVersion: "source.toolkit.fluxcd.io/v1beta2",
			source: &sourcev1.OCIRepository{Spec: sourcev1.OCIRepositorySpec{URL: "oci://registry.example/app", Suspend: true, Interval: hourly}},
			offer: func(object client.Object, artifact *meta.Artifact) {
				object.(*sourcev1.OCIRepository).Status.Artifact = artifact
			},
		},
		"kind-bucket": {
			kind: sourcev1.BucketKind, apiVersion: "source.toolkit.fluxcd.io/v1",
			source: &sourcev1.Bucket{Spec: sourcev1.BucketSpec{BucketName: "app", Endpoint: "s3.example", Suspend: true, Interval: hourly}},
			offer: func(object client.Object, artifact *meta.Artifact) {
				object.(*sourcev1.Bucket).Status.Artifact = artifact
			},
		},
	} {
		t.Run(test.kind, func(t *testing.T) {
			p := begin(t, name)
			p.start(nil, func(s *pulumiv1.Stack) {
				s.Spec.FluxSource.SourceRef.Kind, s.Spec.FluxSource.SourceRef.APIVersion = test.kind, test.apiVersion
			})
			p.Await(notReady(pulumiv1.SourceNotFoundReason))
			test.source.SetNamespace(p.Name)
			test.source.SetName(p.Name)
			p.Create(test.source)
			before := test.source.DeepCopyObject().(client.Object)
			test.offer(test.source, p.put(p.returning(1)))
			p.Expect(system.Client.Status().Patch(p.Context(), test.source, client.MergeFrom(before))).To(Succeed())
			p.Await(ready(""))
		})
	}
}
