package compatibility_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/suite"
)

func TestSourceFieldsWork(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	testUses(t, []use{
		{field: "fluxSource", manifest: "plain", shows: func(s *play, stack *pulumiv1.Stack) {
			s.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(HavePrefix("sha256:"))
			s.Expect(stack.Status.LastAppliedRevision).To(HavePrefix("main@sha1:"))
		}},
		{field: "fluxSource.dir", manifest: "files", shows: wrote("first", "second")},
		{field: "fluxSource.dir (with a leading slash)", manifest: "plain", patch: "{spec: {fluxSource: {dir: /echo}}}"},
		{field: "fluxSource.sourceRef.apiVersion (retired)", manifest: "plain",
			patch: "{spec: {fluxSource: {sourceRef: {apiVersion: source.toolkit.fluxcd.io/v1beta2}}}}"},
		{field: "fluxSource.sourceRef.apiVersion (left out)", manifest: "plain",
			patch: "{spec: {fluxSource: {sourceRef: {apiVersion: null}}}}"},
		{field: "fluxSource (below a git repository)", manifest: "git-branch",
			patch: "{spec: {fluxSource: {dir: broken, sourceRef: {kind: GitRepository, name: programs}}}}", shows: func(s *play, stack *pulumiv1.Stack) {
				s.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(programsCommit))
			}},
		{field: "programRef (below a Flux source)", manifest: "plain", patch: "{spec: {programRef: {name: nobody}}}", shows: func(s *play, stack *pulumiv1.Stack) {
			s.Expect(stack.Status.LastAppliedRevision).To(HavePrefix("main@sha1:"))
		}},
	})
}

func TestMisusedSourceFieldsAreExplainedAndHeal(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	const failed = pulumiv1.RetryingAfterFailureReason
	testMisuses(t, []misuse{
		{field: "fluxSource.sourceRef.name (missing)", manifest: "plain", patch: "{spec: {fluxSource: {sourceRef: {name: nobody}}}}", reason: pulumiv1.SourceNotFoundReason, says: "nobody"},
		{field: "fluxSource.sourceRef.name (absent)", manifest: "plain", patch: "{spec: {fluxSource: {sourceRef: {name: null}}}}", refused: "spec.fluxSource.sourceRef.name: Required value"},
		{field: "fluxSource.sourceRef.kind (unknown)", manifest: "plain", patch: "{spec: {fluxSource: {sourceRef: {kind: Mystery}}}}", reason: pulumiv1.SourceKindNotInstalledReason, says: "Mystery"},
		{field: "fluxSource.sourceRef.kind (no source)", manifest: "plain", patch: "{spec: {fluxSource: {sourceRef: {apiVersion: v1, kind: Secret, name: passphrase}}}}",
			reason: pulumiv1.SpecInvalidReason, says: `spec.fluxSource.sourceRef: Secret of "v1" publishes no artifact`},
		{field: "fluxSource.sourceRef.kind (a Program)", manifest: "plain", patch: "{spec: {fluxSource: {sourceRef: {apiVersion: pulumi.com/v1, kind: Program}}}}",
			reason: pulumiv1.SpecInvalidReason, says: "name it in spec.programRef"},
		{field: "fluxSource.sourceRef.apiVersion (malformed)", manifest: "plain", patch: "{spec: {fluxSource: {sourceRef: {apiVersion: a/b/c}}}}",
			reason: pulumiv1.SpecInvalidReason, says: `spec.fluxSource.sourceRef.apiVersion: "a/b/c"`},
		{field: "fluxSource.dir (missing)", manifest: "plain", patch: "{spec: {fluxSource: {dir: nowhere}}}", reason: failed, says: "nowhere"},
		{field: "fluxSource.dir (outside)", manifest: "plain", patch: "{spec: {fluxSource: {dir: ../../../etc}}}", reason: failed, says: "../../../etc"},
		{field: "fluxSource.dir (without a program)", manifest: "plain", patch: "{spec: {fluxSource: {dir: empty}}}", reason: failed, says: "no Pulumi.yaml there"},
		{field: "fluxSource.sourceRef.kind (empty)", manifest: "plain", patch: "{spec: {fluxSource: {sourceRef: {kind: ''}}}}",
			reason: pulumiv1.SpecInvalidReason, says: "spec.fluxSource.sourceRef.kind is empty"},
		{field: "fluxSource.sourceRef.name (empty)", manifest: "plain", patch: "{spec: {fluxSource: {sourceRef: {name: ''}}}}",
			reason: pulumiv1.SpecInvalidReason, says: "spec.fluxSource.sourceRef.name"},
		{field: "fluxSource.sourceRef.name (huge)", manifest: "plain", patch: "{spec: {fluxSource: {sourceRef: {name: " + strings.Repeat("a", 100_000) + "}}}}",
			reason: pulumiv1.SpecInvalidReason, says: "spec.fluxSource.sourceRef.name"},
		{field: "fluxSource (beside a git repository)", manifest: "plain", patch: "{spec: {projectRepo: 'https://git.example.com/acmecorp/programs'}}",
			reason: pulumiv1.SpecInvalidReason, says: "neither spec.branch nor spec.commit is set"},
	})
}

// TestPublishedManifestsGoAsFarAsTheyCan applies the manifests of the documentation and the announcements of the Pulumi Kubernetes
// Operator. What they speak of, the repositories of others, their Secrets and clouds, is not here, so each ends with saying
// what is missing. None is refused, and only the one that was published without its branch has to be edited.
func TestPublishedManifestsGoAsFarAsTheyCan(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	for _, test := range []struct {
		manifest, stack, reason, says string
	}{
		{"access-token-secret", "nginx", pulumiv1.RepositoryNotFoundReason, "metral/pulumi-nginx"},
		{"env-refs", "my-stack", pulumiv1.RepositoryNotFoundReason, "pulumi/examples"},
		{"flux-source", "random-yaml", pulumiv1.SourceNotReadyReason, "pulumi/examples"},
		{"flux-source-v1beta2", "my-stack", pulumiv1.SourceNotFoundReason, "nginx-repo"},
		{"git-branch", "nginx-k8s-stack-production", pulumiv1.RepositoryNotFoundReason, "acmecorp/pulumi-nginx"},
		{"git-commit", "nginx-k8s-stack-production", pulumiv1.RepositoryNotFoundReason, "acmecorp/pulumi-nginx"},
		{"program", "staticwebsite", pulumiv1.RetryingAfterFailureReason, "does not consist of letters"},
		{"resync-frequency", "prod-api-gateway", pulumiv1.SpecInvalidReason, "neither spec.branch nor spec.commit is set"},
		{"s3-backend", "s3-bucket-stack", pulumiv1.RepositoryNotFoundReason, "acmecorp/pytest1"},
		{"workspace-template", "my-stack", pulumiv1.RetryingAfterFailureReason, `neither the update nor workspace "my-stack" has a source`},
	} {
		t.Run(test.manifest, func(t *testing.T) {
			t.Parallel()
			s := newPlay(t, namespaceFor("published", test.manifest))
			s.onlyGitIsHere()
			s.apply("../../api/testdata/manifests/" + test.manifest)
			s.AwaitStack(test.stack, notReady(test.reason, test.says))
		})
	}
}
