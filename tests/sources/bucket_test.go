package sources_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/objectstore"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
)

// bucket is a scene whose Stack follows a Bucket.
type bucket struct {
	*play
	source *sourcev1.Bucket
}

// newBucket creates a bucket with the name of the scene.
func newBucket(t *testing.T, name string) *bucket {
	t.Helper()
	p := begin(t, name)
	p.Expect(store.CreateBucket(p.Context(), name)).To(Succeed())
	return &bucket{p, &sourcev1.Bucket{Spec: sourcev1.BucketSpec{
		Provider: sourcev1.BucketProviderGeneric, BucketName: name, Endpoint: store.Address, Region: objectstore.Region,
		Insecure: true, Interval: hourly, SecretRef: &meta.LocalObjectReference{Name: "objectstore"},
	}}}
}

// put stores the files in the bucket.
func (b *bucket) put(prefix string, files gitserver.Files) {
	b.Helper()
	for file, content := range files {
		b.Expect(store.Put(b.Context(), b.Name, prefix+file, []byte(content))).To(Succeed())
	}
}

// credentials are those for the bucket.
func (b *bucket) credentials(secretKey string) *corev1.Secret {
	return b.Secret("objectstore", map[string]string{"accesskey": objectstore.AccessKey, "secretkey": secretKey})
}

func TestStackFollowsObjectsOfBucket(t *testing.T) {
	b := newBucket(t, "bucket-objects")
	b.put("", scene.Returning(b.Name, 1))
	b.follow(sourcev1.BucketKind, b.source, b.credentials(store.SecretKey))
	first := b.Await(scene.Showing("1"))

	b.put("", scene.Returning(b.Name, 2))
	b.fetch(b.source)
	second := b.Await(scene.Showing("2"))
	b.Expect(second.Status.LastAppliedRevision).To(And(HavePrefix("sha256:"), Not(Equal(first.Status.LastAppliedRevision))))

	// An object that goes is a change as well.
	b.put("", gitserver.Files{"notes": "not part of the program"})
	b.fetch(b.source)
	third := b.Await(func(s *pulumiv1.Stack) bool {
		return statuscheck.Ready("")(s) && s.Status.LastAppliedRevision != second.Status.LastAppliedRevision
	})
	b.Expect(store.Remove(b.Context(), b.Name, "notes")).To(Succeed())
	b.fetch(b.source)
	b.Await(deployed(second.Status.LastAppliedRevision))
	b.Expect(third.Status.LastUpdate.Name).NotTo(Equal(second.Status.LastUpdate.Name))
}

func TestStackRunsPartOfBucketBelowPrefix(t *testing.T) {
	b := newBucket(t, "bucket-prefix")
	b.put("network/", scene.Returning(b.Name, 1))
	b.put("other/", scene.Returning("other", 2))
	b.source.Spec.Prefix = "network/"
	b.follow(sourcev1.BucketKind, b.source, b.credentials(store.SecretKey))
	// The objects keep their names in the artifact.
	b.Change(func(s *pulumiv1.Stack) { s.Spec.FluxSource.Dir = "network" })
	b.Await(scene.Showing("1"))
}

func TestBucketThatRefusesCredentialsIsExplainedAndHeals(t *testing.T) {
	b := newBucket(t, "bucket-refused")
	b.put("", scene.Returning(b.Name, 1))
	b.follow(sourcev1.BucketKind, b.source, b.credentials("not-the-secret-key"))
	stack := b.Await(statuscheck.NotReady(pulumiv1.SourceNotReadyReason))
	b.Expect(statuscheck.Message(stack)).To(ContainSubstring("Bucket bucket-refused/bucket-refused is not ready"))

	b.Expect(system.Client.Update(b.Context(), b.credentials(store.SecretKey))).To(Succeed())
	b.fetch(b.source)
	b.Await(scene.Showing("1"))
}
