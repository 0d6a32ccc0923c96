package sources_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
)

// newKey is a key to sign commits with, and its public half as a Secret for spec.verify has it.
func newKey(p *play) (key *openpgp.Entity, public string) {
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
	repository, _, err := system.Git.Create(p.Name, scene.Returning(p.Name, 1))
	p.Succeed(err)
	commit := func(value int) {
		_, err := repository.Commit(scene.Returning(p.Name, value))
		p.Succeed(err)
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

	// A key is set, and the commit that is published already has no signature.
	before := source.DeepCopy()
	source.Spec.Verification = &sourcev1.GitRepositoryVerification{Mode: sourcev1.ModeGitHEAD, SecretRef: meta.LocalObjectReference{Name: "keys"}}
	p.Expect(system.Client.Patch(p.Context(), source, client.MergeFrom(before))).To(Succeed())
	p.Await(func(stack *pulumiv1.Stack) bool {
		return statuscheck.NotReady(pulumiv1.SourceNotVerifiedReason)(stack) && strings.Contains(statuscheck.Message(stack), "refused")
	})

	repository.SignWith(key)
	commit(2)
	p.fetch(source)
	signed := p.Await(scene.Showing("2"))
	p.Get(p.Name, source)
	p.Expect(signed.Status.VerifiedDigest).To(Equal(source.Status.Artifact.Digest))

	// The next commit is somebody else's. Flux refuses it, and the Stack stays with what was verified.
	repository.SignWith(nil)
	commit(3)
	p.fetch(source)
	p.Eventually(func() (*sourcev1.GitRepository, error) {
		return source, system.Client.Get(p.Context(), p.Key(p.Name), source)
	}).Should(Satisfy(func(source *sourcev1.GitRepository) bool {
		return conditions.IsFalse(source, sourcev1.SourceVerifiedCondition)
	}))
	p.Await(scene.Showing("2"))
	p.Change(scene.Annotate(meta.ReconcileRequestAnnotation, "now"))
	again := p.Await(func(stack *pulumiv1.Stack) bool {
		return statuscheck.Ready("")(stack) && stack.Status.LastHandledReconcileAt == "now"
	})
	p.Expect(scene.Output(again, "x")).To(Equal("2"))

	// An Update by hand is no way around it.
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
}
