package source

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/stack-controller/stack-controller/internal/references"
)

// repository returns a source with an artifact of these properties. Without a digest, it returns a source that is not Ready, with url as
// the message.
func repository(revision, digest, url string) *unstructured.Unstructured {
	status := map[string]any{"artifact": map[string]any{
		"revision": revision, "digest": digest, "url": url, "path": "p", "lastUpdateTime": "2026-11-21T00:00:00Z", "size": int64(5),
		"metadata": map[string]any{originRevisionAnnotation: "main@sha1:0"},
	}}
	if digest == "" {
		status = map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "False", "message": url}}}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "OCIRepository",
		"metadata": map[string]any{"namespace": "team", "name": "app"}, "status": status,
	}}
}

func TestSourceHasChangedWhenItsOfferHas(t *testing.T) {
	base := repository("r", "sha256:a", "http://x")
	ofCommit := func(origin string) *unstructured.Unstructured {
		object := base.DeepCopy()
		object.Object["status"].(map[string]any)["artifact"].(map[string]any)["metadata"] = map[string]any{originRevisionAnnotation: origin}
		return object
	}
	for _, test := range []struct {
		name          string
		before, after *unstructured.Unstructured
		changed       bool
	}{
		{"nothing", base, base.DeepCopy(), false},
		{"revision", base, repository("s", "sha256:a", "http://x"), true},
		{"digest under the same revision", base, repository("r", "sha256:b", "http://x"), true},
		{"place", base, repository("r", "sha256:a", "http://y"), true},
		{"commit of the same artifact", base, ofCommit("main@sha1:" + firstSHA), true},
		{"first artifact", repository("", "", "why"), base, true},
		{"same problem", repository("", "", "why"), repository("", "", "why"), false},
		{"another problem", repository("", "", "why"), repository("", "", "because"), true},
		{"malformed", base, &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"artifact": "x"}}}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			NewWithT(t).Expect(fluxChanged(test.before, test.after)).To(Equal(test.changed))
		})
	}
}

func TestArtifactIsReadFromTheStatus(t *testing.T) {
	g := NewWithT(t)
	found, err := artifactOf(repository("r", "sha256:a", "http://x"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found.Revision).To(Equal("r"))
	g.Expect(found.Commit()).To(Equal("sha256:a"))
	g.Expect(found.Size).To(HaveValue(BeEquivalentTo(5)))

	found, err = artifactOf(repository("", "", "why"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(BeNil())

	old := repository("r", "sha256:a", "http://x")
	unstructured.RemoveNestedField(old.Object, "status", "artifact", "digest")
	_, err = artifactOf(old)
	g.Expect(err).To(MatchError(HavePrefix("OCIRepository team/app publishes an artifact without a digest")))
}

func TestKeyIgnoresTheVersionAndDefaultsTheNamespace(t *testing.T) {
	g := NewWithT(t)
	stack := fluxStack("source.toolkit.fluxcd.io/v1beta2", "Bucket")
	key := (&Flux{}).Key(stack)
	g.Expect(key).To(Equal("Bucket.source.toolkit.fluxcd.io/team/x"))
	stack.Spec.FluxSource.SourceRef.APIVersion = "source.toolkit.fluxcd.io/v1"
	g.Expect((&Flux{}).Key(stack)).To(Equal(key))
	stack.Spec.FluxSource.SourceRef.APIVersion = ""
	g.Expect((&Flux{}).Key(stack)).To(Equal(key), "the group is Flux's unless another one is named")

	stack.Spec.FluxSource.SourceRef.Namespace = "another"
	g.Expect((&Flux{}).Key(stack)).To(BeEmpty(), "a change of a source that it may not use does not wake it")
	g.Expect((&Flux{Scope: references.Scope{OtherNamespaces: true}}).Key(stack)).NotTo(BeEmpty())
}
