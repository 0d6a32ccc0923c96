package e2e_test

import (
	"archive/tar"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

func TestStackSaysWhatIsWrongWithItsSource(t *testing.T) {
	suite.Long(t, "further states of a source")
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*pulumiv1.Stack)
		reason string
		says   string
	}{
		{"missing", func(s *pulumiv1.Stack) { s.Spec.FluxSource.SourceRef.Name = "nobody" }, pulumiv1.SourceNotFoundReason, "nobody does not exist"},
		{"without-artifact", func(*pulumiv1.Stack) {}, pulumiv1.ArtifactNotFoundReason, "has no artifact yet"},
		{"unknown-kind", func(s *pulumiv1.Stack) { s.Spec.FluxSource.SourceRef.Kind = "Mystery" }, pulumiv1.SourceKindNotInstalledReason, "does not serve Mystery"},
		{"forbidden-kind", func(s *pulumiv1.Stack) { s.Spec.FluxSource.SourceRef.Kind = sourcev1.HelmChartKind }, pulumiv1.AccessDeniedReason, "not allowed to read HelmChart"},
		{"other-namespace", func(s *pulumiv1.Stack) { s.Spec.FluxSource.SourceRef.Namespace = "kube-system" }, pulumiv1.AccessDeniedReason, "references to another namespace are not allowed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := begin(t, "source-"+test.name)
			p.start(nil, test.change)
			stack := p.Await(notReady(test.reason))
			p.Expect(statuscheck.Message(stack)).To(ContainSubstring(test.says))
			p.Expect(p.Updates()).To(BeEmpty())
		})
	}
}

func TestStackRunsAsSoonAsItsSourceAppears(t *testing.T) {
	suite.Long(t, "further states of a source")
	p := begin(t, "source-appears")
	p.start(nil)
	p.Await(notReady(pulumiv1.ArtifactNotFoundReason))
	artifact := p.publish(p.returning(1))
	p.Await(ready(artifact.Digest))
}

func TestHostileArtifactNeverRunsAndIsExplained(t *testing.T) {
	t.Parallel()
	good := systemtest.File("Pulumi.yaml", "name: hostile\nruntime: yaml\n")
	for _, test := range []struct {
		name    string
		content []byte
		reason  string
	}{
		{"parent-path", systemtest.Tarball(good, systemtest.File("../escape", "x")), pulumiv1.ArtifactUnusableReason},
		{"absolute-path", systemtest.Tarball(good, systemtest.File("/tmp/escape", "x")), pulumiv1.ArtifactUnusableReason},
		{"device", systemtest.Tarball(good, systemtest.Entry{Header: tar.Header{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}}), pulumiv1.ArtifactUnusableReason},
		{"garbage", []byte("this is no archive"), pulumiv1.ArtifactUnusableReason},
		{"too-large", append(systemtest.Tarball(good), make([]byte, maxArtifactSize)...), pulumiv1.ArtifactTooLargeReason},
		{"bomb", systemtest.Tarball(good, systemtest.File("zeros", string(make([]byte, maxUnpackedSize+1)))), pulumiv1.ArtifactTooLargeReason},
		{"many-entries", systemtest.Tarball(append(slices.Repeat([]systemtest.Entry{systemtest.File("f", "")}, maxEntries+1), good)...), pulumiv1.ArtifactTooLargeReason},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := begin(t, "hostile-"+test.name)
			p.start(artifacts.Put("v1", test.content))
			stack := p.Await(notReady(test.reason))
			p.Expect(stack.Status.ObservedGeneration).To(Equal(stack.Generation), "whoever waits for the Stack shall fail fast")
			p.Expect(p.Updates()).To(BeEmpty())
		})
	}
}

func TestWrongDigestIsReportedAndRecovers(t *testing.T) {
	p := begin(t, "wrong-digest")
	artifact := p.put(p.returning(1))
	wrong := artifact.DeepCopy()
	wrong.Digest = systemtest.DigestOf([]byte("something else"))
	p.start(wrong)
	stack := p.Await(notReady(pulumiv1.ArtifactDigestMismatchReason))
	p.Expect(statuscheck.Message(stack)).To(And(ContainSubstring(wrong.Digest), Not(ContainSubstring(artifact.Digest))), "what is there is in the log only")
	p.Expect(p.Updates()).To(BeEmpty())

	p.Offer(artifact)
	p.Await(ready(artifact.Digest))
}

func TestArtifactThatVanishedIsWaitedFor(t *testing.T) {
	suite.Long(t, "further states of a source")
	p := begin(t, "vanished")
	artifact := p.put(p.returning(1))
	artifacts.Replace(artifact.Path, nil)
	p.start(artifact)
	p.Await(notReady(pulumiv1.ArtifactFetchFailedReason))
	next := p.publish(p.returning(2))
	p.Await(ready(next.Digest))
}

func TestOneDownloadServesEveryStack(t *testing.T) {
	suite.Long(t, "internal/source/artifact proves it for its store")
	p := begin(t, "one-download")
	artifact := p.put(p.returning(1))
	p.start(artifact)
	for _, other := range []string{"one-download-b", "one-download-c"} {
		p.layer(other)
	}
	for _, each := range []string{p.Name, "one-download-b", "one-download-c"} {
		p.AwaitStack(each, ready(artifact.Digest))
	}
	p.Expect(artifacts.Requests(artifact)).To(Equal(1))
}

// program is a Pulumi program with one output.
func program(value string) gitserver.Files {
	return gitserver.Files{"Pulumi.yaml": fmt.Sprintf("name: e2e\nruntime: yaml\nvariables:\n  value: %s\noutputs:\n  value: ${value}\n", value)}
}

func TestStackFollowsTheCommitsOfAGitRepository(t *testing.T) {
	p := begin(t, "follows-commits")
	ctx, cancel := context.WithTimeout(p.Context(), p.Patience)
	defer cancel()
	app, err := system.Deploy(ctx, p.Name, program("first"))
	p.Succeed(err)
	stack, err := system.WaitReady(ctx, app)
	p.Succeed(err)
	p.Expect(stack.Status.LastUpdate).NotTo(BeNil())
	p.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded))
	first := stack.Status.LastUpdate.LastSuccessfulCommit
	p.Expect(first).To(MatchRegexp("^sha256:[0-9a-f]{64}$"))
	p.Expect(systemtest.Output(stack, "value")).To(Equal(`"first"`))

	rollout, err := system.Rollout(ctx, app, program("second"))
	p.Succeed(err)
	p.Expect(rollout.Digest).NotTo(Equal(first))
	stack, err = system.WaitReady(ctx, app)
	p.Succeed(err)
	p.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(rollout.Digest))
	p.Expect(stack.Status.LastAppliedRevision).To(Equal("main@sha1:" + rollout.SHA))
	p.Expect(systemtest.Output(stack, "value")).To(Equal(`"second"`))
}

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
			source: &sourcev1.OCIRepository{Spec: sourcev1.OCIRepositorySpec{URL: "oci://registry.example/app", Suspend: true, Interval: &hourly}},
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
