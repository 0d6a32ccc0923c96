package source

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fluxcd/pkg/apis/meta"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/references"
)

// fluxStack is a Stack whose source is of the kind.
func fluxStack(apiVersion, kind string) *pulumiv1.Stack {
	stack := &pulumiv1.Stack{Namespace: "team", Name: "app"}
	stack.Spec.FluxSource = &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{APIVersion: apiVersion, Kind: kind, Name: "x"}}
	return stack
}

func TestKindThatCannotBeASourceIsRefusedUnread(t *testing.T) {
	for _, test := range []struct{ apiVersion, kind, says string }{
		{"v1", "Secret", "Secret"},
		{"/v1", "Secret", "Secret"},
		{"/", "Secret", "Secret"},
		{"v1", "ConfigMap", "ConfigMap"},
		{"a/b/c", "Secret", "spec.fluxSource.sourceRef.apiVersion"},
		{"apps/v1", "Deployment", "Deployment"},
		{"batch/v1", "Job", "Job"},
		{"rbac.authorization.k8s.io/v1", "Role", "Role"},
		{"certificates.k8s.io/v1", "CertificateSigningRequest", "CertificateSigningRequest"},
		{"internal.apiserver.k8s.io/v1alpha1", "StorageVersion", "StorageVersion"},
		{"pulumi.com/v1", "Stack", "Stack"},
		{"pulumi.com/v1alpha1", "Program", "spec.programRef"},
		{"auto.pulumi.com/v1alpha1", "Workspace", "Workspace"},
	} {
		t.Run(test.apiVersion+" "+test.kind, func(t *testing.T) {
			g := NewWithT(t)
			// This Flux has no client, so it would panic if it read anything.
			_, err := (&Flux{Scope: references.Scope{OtherNamespaces: true}}).Resolve(t.Context(), fluxStack(test.apiVersion, test.kind), false)
			problem := problemIn(g, err)
			g.Expect(problem.Reason).To(Equal(pulumiv1.SpecInvalidReason))
			g.Expect(problem.Permanent).To(BeTrue())
			g.Expect(problem.Message).To(And(HavePrefix("spec.fluxSource.sourceRef"), ContainSubstring(test.says)))
		})
	}
}

func TestExternalArtifactNeedsItsFeatureGate(t *testing.T) {
	g := NewWithT(t)
	_, err := (&Flux{DisableExternalArtifact: true}).Resolve(t.Context(), fluxStack("source.toolkit.fluxcd.io/v1", "ExternalArtifact"), false)
	problem := problemIn(g, err)
	g.Expect(problem.Reason).To(Equal(pulumiv1.AccessDeniedReason))
	g.Expect(problem.Permanent).To(BeTrue())
	g.Expect(problem.Message).To(HaveSuffix("is off; the controller's flag --feature-gates=ExternalArtifact=true allows it"))
}

func TestKindOfAnyOtherGroupMayBeASource(t *testing.T) {
	for apiVersion, kind := range map[string]string{
		"":                                   "GitRepository",
		"source.toolkit.fluxcd.io/v1":        "OCIRepository",
		"source.toolkit.fluxcd.io/v1beta2":   "Bucket",
		"source.toolkit.fluxcd.io/v2":        "ExternalArtifact",
		"artifacts.example.com/v1":           "Build",
		"delivery.x-k8s.io/v1":               "Build",
		"artifacts.pulumi.com.example.com/v": "Secret",
	} {
		stack := fluxStack(apiVersion, kind)
		_, err := (&Flux{}).check("spec.fluxSource.sourceRef", "team", meta.NamespacedObjectKindReference(stack.Spec.FluxSource.SourceRef))
		NewWithT(t).Expect(err).NotTo(HaveOccurred(), apiVersion)
	}
}

func TestCacheHoldsNothingOfASourceButWhatIsReadOfIt(t *testing.T) {
	g := NewWithT(t)
	const canary = "canary-of-a-payload"
	stripped := func(object *unstructured.Unstructured) *unstructured.Unstructured {
		kept, err := CacheTransform(object)
		g.Expect(err).NotTo(HaveOccurred())
		return kept.(*unstructured.Unstructured)
	}
	wrong := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Vault", "data": map[string]any{"key": canary}, "stringData": canary,
		"metadata": map[string]any{
			"namespace": "team", "name": "x", "uid": "u", "resourceVersion": "7", "labels": map[string]any{"a": canary},
			"annotations":   map[string]any{"kubectl.kubernetes.io/last-applied-configuration": canary},
			"managedFields": []any{map[string]any{"manager": canary}},
		},
		"spec":   map[string]any{"secret": canary},
		"status": map[string]any{"token": canary, "exportedInputs": map[string]any{"a": map[string]any{"b": canary}}},
	}}
	kept := stripped(wrong)
	g.Expect(kept.Object).To(Equal(map[string]any{
		"apiVersion": "example.com/v1", "kind": "Vault",
		"metadata": map[string]any{"namespace": "team", "name": "x", "uid": "u", "resourceVersion": "7"},
	}))
	g.Expect(stripped(kept)).To(Equal(kept), "once more changes nothing")
	g.Expect(stripped(&unstructured.Unstructured{Object: map[string]any{"spec": canary, "status": []any{canary}}}).Object).To(BeEmpty())

	// All fields that are read of a source are kept.
	source := repository("main@sha1:"+firstSHA, "sha256:a", "http://x")
	source.SetKind("GitRepository")
	source.Object["spec"] = map[string]any{"url": testURL, "ref": map[string]any{"tag": "main"}, "secretRef": map[string]any{"name": canary}}
	before, err := artifactOf(source)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(before.Origin.Commit).NotTo(BeNil())
	after, err := artifactOf(stripped(source))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(after).To(Equal(before))
	failing := repository("", "", "why")
	g.Expect(withoutArtifact(stripped(failing), true)).To(Equal(withoutArtifact(failing, true)))

	// Objects of other kinds lose only the managed fields and the last-applied annotation of kubectl.
	typed := &corev1.Service{
		Name: "x", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
		Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: canary, "a": "b"}}
	_, err = CacheTransform(typed)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(typed.Name).To(Equal("x"))
	g.Expect(typed.ManagedFields).To(BeEmpty())
	g.Expect(typed.Annotations).To(Equal(map[string]string{"a": "b"}))
}

func TestCacheHoldsNothingOfWhatAProgramRuns(t *testing.T) {
	g := NewWithT(t)
	written := &pulumiv1.Program{}
	g.Expect(json.Unmarshal([]byte(`{"metadata": {"name": "app", "generation": 3}, "program": {"resources": {"a": {"type": "b"}}}, "status": {"observedGeneration": 2}}`), written)).To(Succeed())
	g.Expect(written.Program.Verbatim).NotTo(BeEmpty())
	kept, err := ProgramCacheTransform(written)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kept).To(HaveField("Program", pulumiv1.ProgramSpec{}))
	g.Expect(kept).To(And(HaveField("Name", "app"), HaveField("Generation", BeEquivalentTo(3)), HaveField("Status.ObservedGeneration", BeEquivalentTo(2))))
}

func TestCacheHoldsLittleOfASourceWhoseOwnerWritesMuch(t *testing.T) {
	g := NewWithT(t)
	source := repository("main@sha1:"+firstSHA, "sha256:a", "http://x")
	source.SetKind("GitRepository")
	many := map[string]any{}
	for i := range 10_000 {
		many[fmt.Sprint("key-", i)] = strings.Repeat("x", 100)
	}
	long := strings.Repeat("é", 500<<10)
	status := source.Object["status"].(map[string]any)
	status["artifact"].(map[string]any)["metadata"] = many
	status["conditions"] = []any{map[string]any{"type": "Ready", "status": "True", "message": long}, many, many}
	source.Object["spec"] = map[string]any{"url": long, "ref": many, "verify": map[string]any{"matchOIDCIdentity": []any{many}}}
	kept, err := CacheTransform(source)
	g.Expect(err).NotTo(HaveOccurred())
	content, err := json.Marshal(kept.(*unstructured.Unstructured).Object)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(content)).To(BeNumerically("<", 2*maxCached))
	found, err := artifactOf(kept.(*unstructured.Unstructured))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found.Digest).To(Equal("sha256:a"))
}
