package sources_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/objectstore"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// bucket is a fixture whose Stack follows a Bucket.
type bucket struct {
	*fixture
	source *sourcev1.Bucket
}

// newBucket creates a bucket with the name of the fixture.
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

// credentials returns the Secret with the credentials for the bucket.
func (b *bucket) credentials(secretKey string) *corev1.Secret {
	return b.Secret("objectstore", map[string]string{"accesskey": objectstore.AccessKey, "secretkey": secretKey})
}

func TestStackFollowsObjectsOfBucket(t *testing.T) {
	b := newBucket(t, "bucket-objects")
	b.put("", systemtest.Returning(b.Name, 1))
	b.follow(sourcev1.BucketKind, b.source, b.credentials(store.SecretKey))
	first := b.Await(systemtest.Showing("1"))

	b.put("", systemtest.Returning(b.Name, 2))
	b.fetch(b.source)
	second := b.Await(systemtest.Showing("2"))
	b.Expect(second.Status.LastAppliedRevision).To(And(HavePrefix("sha256:"), Not(Equal(first.Status.LastAppliedRevision))))

	// The removal of an object is also a change.
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
	b.put("network/", systemtest.Returning(b.Name, 1))
	b.put("other/", systemtest.Returning("other", 2))
	b.source.Spec.Prefix = "network/"
	b.follow(sourcev1.BucketKind, b.source, b.credentials(store.SecretKey))
	// The objects keep their names in the artifact.
	b.Change(func(s *pulumiv1.Stack) { s.Spec.FluxSource.Dir = "network" })
	b.Await(systemtest.Showing("1"))
}

func TestBucketThatRefusesCredentialsIsExplainedAndRecovers(t *testing.T) {
	b := newBucket(t, "bucket-refused")
	b.put("", systemtest.Returning(b.Name, 1))
	b.follow(sourcev1.BucketKind, b.source, b.credentials("not-the-secret-key"))
	stack := b.Await(statuscheck.NotReady(pulumiv1.SourceNotReadyReason))
	b.Expect(statuscheck.Message(stack)).To(ContainSubstring("Bucket bucket-refused/bucket-refused is not ready"))

	b.Expect(system.Client.Update(b.Context(), b.credentials(store.SecretKey))).To(Succeed())
	b.fetch(b.source)
	b.Await(systemtest.Showing("1"))
}

func TestStackFollowsWhatAnotherControllerPublishes(t *testing.T) {
	p := begin(t, "external")
	artifacts := systemtest.ServeArtifacts()
	t.Cleanup(artifacts.Close)
	p.follow(sourcev1.ExternalArtifactKind, &sourcev1.ExternalArtifact{})
	p.Await(statuscheck.NotReady(pulumiv1.ArtifactNotFoundReason))
	p.Offer(artifacts.Put("v1", systemtest.Packed(systemtest.Returning(p.Name, 1))))
	p.Await(deployed("v1"))

	second := artifacts.Put("v2", systemtest.Packed(systemtest.Returning(p.Name, 2)))
	wrong := second.DeepCopy()
	wrong.Digest = systemtest.DigestOf([]byte("something else"))
	p.Offer(wrong)
	stack := p.Await(statuscheck.NotReady(pulumiv1.ArtifactDigestMismatchReason))
	p.Expect(statuscheck.Message(stack)).To(And(ContainSubstring(wrong.Digest), Not(ContainSubstring(second.Digest))),
		"the digest of what is there is in the log only")
	p.Expect(systemtest.Output(stack, "x")).To(Equal("1"), "what does not match its digest is never run")

	second.Revision = "v3"
	p.Offer(second)
	p.Expect(systemtest.Output(p.Await(deployed("v3")), "x")).To(Equal("2"))
}

// This test restarts the controller, so it runs before the other tests, which are parallel.
func TestSourceInAnotherNamespaceIsUsedOnlyWhereTheControllerAllowsIt(t *testing.T) {
	p := &fixture{systemtest.New(t, system, "tenant", systemtest.Patience)}
	shared := &fixture{systemtest.New(t, system, "shared-sources", systemtest.Patience)}
	push(shared, "latest", pushed(p.Name, 1))
	source := ociRepository(shared.Name)
	source.ObjectMeta = shared.Meta(shared.Name)
	shared.Enter(passphrase, source)
	stack := system.NewStack(p.Name, p.Name, sourcev1.OCIRepositoryKind)
	stack.Spec.FluxSource.SourceRef.Namespace, stack.Spec.FluxSource.SourceRef.Name = shared.Name, shared.Name
	p.Enter(passphrase, stack)
	refused := p.Await(statuscheck.NotReady(pulumiv1.AccessDeniedReason))
	p.Expect(statuscheck.Message(refused)).To(ContainSubstring("references to another namespace are not allowed"))

	p.Expect(system.StopController()).To(Succeed())
	system.ControlWith(append(slices.Clone(controllerArgs), "--no-cross-namespace-refs=false")...)
	p.Expect(system.StartController(p.Context())).To(Succeed())
	p.Await(systemtest.Showing("1"))
	// The controller watches the source in its own namespace, so a new artifact reaches the Stack.
	push(shared, "latest", pushed(p.Name, 2))
	shared.fetch(source)
	p.Await(systemtest.Showing("2"))
}

// newKey returns a key to sign commits with, and its public half in the form that the Secret of spec.verify contains.
func newKey(p *fixture) (key *openpgp.Entity, public string) {
	p.Helper()
	key, err := openpgp.NewEntity("Demo", "", "demo@example.com", nil)
	p.Succeed(err)
	var text bytes.Buffer
	writer, err := armor.Encode(&text, openpgp.PublicKeyType, nil)
	p.Succeed(err)
	p.Succeed(key.Serialize(writer))
	p.Succeed(writer.Close())
	return key, text.String()
}

func TestStackThatRequiresItRunsNothingButWhatFluxHasVerified(t *testing.T) {
	p := begin(t, "verified")
	key, public := newKey(p)
	repository, _, err := system.Git.Create(p.Name, systemtest.Returning(p.Name, 1))
	p.Succeed(err)
	commit := func(value int) (sha string) {
		sha, err := repository.Commit(systemtest.Returning(p.Name, value))
		p.Succeed(err)
		return sha
	}
	source := &sourcev1.GitRepository{Spec: sourcev1.GitRepositorySpec{
		URL: repository.URL, Interval: hourly, Reference: &sourcev1.GitRepositoryRef{Branch: gitserver.Branch},
	}}
	source.ObjectMeta = p.Meta(p.Name)
	stack := system.NewStack(p.Name, p.Name, sourcev1.GitRepositoryKind)
	stack.Spec.RequireVerified = true
	p.Enter(passphrase, p.Secret("keys", map[string]string{"author.asc": public}), source, stack)
	refused := p.Await(statuscheck.NotReady(pulumiv1.SourceNotVerifiedReason))
	p.Expect(statuscheck.Message(refused)).To(And(ContainSubstring("GitRepository verified/verified"), ContainSubstring("spec.verify")))

	// Verification is switched on, but the published commit has no signature.
	before := source.DeepCopy()
	source.Spec.Verification = &sourcev1.GitRepositoryVerification{Mode: sourcev1.ModeGitHEAD, SecretRef: meta.LocalObjectReference{Name: "keys"}}
	p.Expect(system.Client.Patch(p.Context(), source, client.MergeFrom(before))).To(Succeed())
	p.Await(func(stack *pulumiv1.Stack) bool {
		return statuscheck.NotReady(pulumiv1.SourceNotVerifiedReason)(stack) && strings.Contains(statuscheck.Message(stack), "refused")
	})

	repository.SignWith(key)
	commit(2)
	p.fetch(source)
	signed := p.Await(systemtest.Showing("2"))
	p.Get(p.Name, source)
	p.Expect(signed.Status.VerifiedDigest).To(Equal(source.Status.Artifact.Digest))

	// The next commit is not signed by the key. Flux refuses it, and the Stack keeps what was verified.
	repository.SignWith(nil)
	commit(3)
	p.fetch(source)
	p.Eventually(func() (*sourcev1.GitRepository, error) {
		return source, system.Client.Get(p.Context(), p.Key(p.Name), source)
	}).Should(Satisfy(func(source *sourcev1.GitRepository) bool {
		return conditions.IsFalse(source, sourcev1.SourceVerifiedCondition)
	}))
	p.Await(systemtest.Showing("2"))
	p.Change(systemtest.Annotate(meta.ReconcileRequestAnnotation, "now"))
	again := p.Await(func(stack *pulumiv1.Stack) bool {
		return statuscheck.Ready("")(stack) && stack.Status.LastHandledReconcileAt == "now"
	})
	p.Expect(systemtest.Output(again, "x")).To(Equal("2"))

	// An Update by hand cannot bypass the verification.
	byHand := &autov1alpha1.Update{
		ObjectMeta: p.Meta("by-hand"),
		Spec: autov1alpha1.UpdateSpec{
			WorkspaceName: p.Name, StackName: "dev", Type: autov1alpha1.UpdateTypePreview,
			Source: &autov1alpha1.UpdateSource{URL: source.Status.Artifact.URL, Digest: source.Status.Artifact.Digest},
		},
	}
	p.Create(byHand)
	p.Eventually(func() ([]metav1.Condition, error) {
		return byHand.Status.Conditions, system.Client.Get(p.Context(), client.ObjectKeyFromObject(byHand), byHand)
	}).Should(ContainElement(HaveField("Message", ContainSubstring("only what Flux has verified may run"))))

	// The key of the verified commit is revoked. Flux before 2.10 looks at a commit again only when it has to make another artifact of it,
	// so the test also changes what is ignored.
	repository.SignWith(key)
	commit(4)
	p.fetch(source)
	p.Await(systemtest.Showing("4"))
	otherKey, other := newKey(p)
	p.Create(p.Secret("other-keys", map[string]string{"author.asc": other}))
	before = source.DeepCopy()
	source.Spec.Verification.SecretRef.Name, source.Spec.Ignore = "other-keys", new("/nothing")
	p.Expect(system.Client.Patch(p.Context(), source, client.MergeFrom(before))).To(Succeed())
	revoked := p.Await(statuscheck.NotReady(pulumiv1.SourceNotVerifiedReason))
	p.Expect(statuscheck.Message(revoked)).To(ContainSubstring("refused: signature verification of commit"))
	p.Expect(revoked.Status.VerifiedDigest).To(BeEmpty())

	// Flux then looks at another commit, and no longer says anything about the one that the Stack had.
	repository.SignWith(nil)
	unsigned := commit(5)
	p.fetch(source)
	p.Await(func(stack *pulumiv1.Stack) bool {
		return statuscheck.NotReady(pulumiv1.SourceNotVerifiedReason)(stack) && strings.Contains(statuscheck.Message(stack), unsigned)
	})
	repository.SignWith(otherKey)
	commit(6)
	p.fetch(source)
	p.Await(systemtest.Showing("6"))
}
