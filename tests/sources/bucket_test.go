package sources_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/objectstore"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
)

// put stores the program's files in the bucket.
func put(t *testing.T, bucket, prefix string, files map[string]string) {
	t.Helper()
	for file, content := range files {
		succeed(t, store.Put(t.Context(), bucket, prefix+file, []byte(content)))
	}
}

// followBucket creates a namespace with a Bucket, the Secret for it, and a Stack that follows it.
func followBucket(t *testing.T, name, secretKey string, changes ...func(*sourcev1.Bucket)) *sourcev1.Bucket {
	t.Helper()
	source := &sourcev1.Bucket{
		ObjectMeta: named(name, name),
		Spec: sourcev1.BucketSpec{
			Provider: sourcev1.BucketProviderGeneric, BucketName: name, Endpoint: store.Address, Region: objectstore.Region,
			Insecure: true, Interval: hourly, SecretRef: &meta.LocalObjectReference{Name: "objectstore"},
		},
	}
	for _, change := range changes {
		change(source)
	}
	namespace(t, name)
	create(t, &corev1.Secret{
		ObjectMeta: named(name, "objectstore"), StringData: map[string]string{"accesskey": objectstore.AccessKey, "secretkey": secretKey},
	}, source, stackOf(name, sourcev1.BucketKind))
	return source
}

func TestStackFollowsObjectsOfBucket(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "bucket-objects"
	succeed(t, store.CreateBucket(t.Context(), name))
	put(t, name, "", program(name, "1"))
	source := followBucket(t, name, store.SecretKey)
	first := await(t, name, showing("1"))

	put(t, name, "", program(name, "2"))
	fetch(t, source)
	second := await(t, name, showing("2"))
	g.Expect(second.Status.LastAppliedRevision).To(And(HavePrefix("sha256:"), Not(Equal(first.Status.LastAppliedRevision))))

	// An object that goes is a change as well.
	put(t, name, "", map[string]string{"notes": "not part of the program"})
	fetch(t, source)
	third := await(t, name, func(s *pulumiv1.Stack) bool {
		return statuscheck.Ready("")(s) && s.Status.LastAppliedRevision != second.Status.LastAppliedRevision
	})
	succeed(t, store.Remove(t.Context(), name, "notes"))
	fetch(t, source)
	await(t, name, deployed(second.Status.LastAppliedRevision))
	g.Expect(third.Status.LastUpdate.Name).NotTo(Equal(second.Status.LastUpdate.Name))
}

func TestStackRunsPartOfBucketBelowPrefix(t *testing.T) {
	t.Parallel()
	const name = "bucket-prefix"
	succeed(t, store.CreateBucket(t.Context(), name))
	put(t, name, "network/", program(name, "1"))
	put(t, name, "other/", program("other", "2"))
	stack := func(s *sourcev1.Bucket) { s.Spec.Prefix = "network/" }
	followBucket(t, name, store.SecretKey, stack)
	// The objects keep their names in the artifact.
	change(t, name, func(s *pulumiv1.Stack) { s.Spec.FluxSource.Dir = "network" })
	await(t, name, showing("1"))
}

func TestBucketThatRefusesCredentialsIsExplainedAndHeals(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "bucket-refused"
	succeed(t, store.CreateBucket(t.Context(), name))
	put(t, name, "", program(name, "1"))
	source := followBucket(t, name, "not-the-secret-key")
	stack := await(t, name, statuscheck.NotReady(pulumiv1.SourceNotReadyReason))
	g.Expect(statuscheck.Message(stack)).To(ContainSubstring("Bucket bucket-refused/bucket-refused is not ready"))

	secret := &corev1.Secret{ObjectMeta: named(name, "objectstore")}
	secret.StringData = map[string]string{"accesskey": objectstore.AccessKey, "secretkey": store.SecretKey}
	succeed(t, system.Client.Update(t.Context(), secret))
	fetch(t, source)
	await(t, name, showing("1"))
}
