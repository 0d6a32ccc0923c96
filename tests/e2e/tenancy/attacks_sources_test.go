package tenancy_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/e2e/tenancy/pressure"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
)

// The refusals of an artifact: its URL gives no access, or is not where the source publishes.
var (
	notFetched   = refusal{reasons: []string{pulumiv1.ArtifactFetchFailedReason}}
	notPublished = refusal{reasons: []string{pulumiv1.SourceNotReadyReason}, says: "is not where its artifacts are published"}
)

// noDigest is the digest of no existing content.
var noDigest = "sha256:" + strings.Repeat("0", 64)

// sourceAttacks try to run the program of another tenant, or to learn something about it.
var sourceAttacks = []attack{
	{
		name: "artifact-url-in-template", promise: "sources",
		does: "sets the URL of the victim's artifact in `workspaceTemplate.spec.flux`, with a digest of zeros",
		sees: "`ArtifactFetchFailed`: the attacker's own pod fetches the URL, and the NetworkPolicy of Flux's namespace blocks it. No message contains the digest of the content.",
		run: func(a *attacker) {
			a.expectRefused(a.createStack(inTemplate(a.victim.url, noDigest)), notFetched)
			a.expectNotVisible(hexOf(a.victim.digest))
		},
	},
	{
		name: "artifact-digest-in-template", promise: "sources",
		does: "sets the digest of the victim's artifact in `workspaceTemplate.spec.flux`, with a URL that does not exist",
		sees: "`ArtifactFetchFailed`: the digest alone gives no access to the content.",
		run: func(a *attacker) {
			a.expectRefused(a.createStack(inTemplate("http://x.invalid/", a.victim.digest)), notFetched)
		},
	},
	{
		name: "artifact-digest-in-workspace", promise: "sources",
		does: "sets the URL and digest of the victim's artifact in a Workspace, and creates an Update",
		sees: "`ArtifactFetchFailed`: the pod cannot reach the URL, and the controller does not deliver the artifact to it.",
		run: func(a *attacker) {
			a.newWorkspace(func(spec *autov1alpha1.WorkspaceSpec) {
				spec.Flux = &autov1alpha1.FluxSource{URL: a.victim.url, Digest: a.victim.digest}
			})
			a.expectUpdateRefused(a.newUpdate(nil), pulumiv1.ArtifactFetchFailedReason)
		},
	},
	{
		name: "artifact-digest-in-update", promise: "sources",
		does: "sets the URL and digest of the victim's artifact in `Update.spec.source`",
		sees: "`ArtifactFetchFailed`: the pod cannot reach the URL.",
		run: func(a *attacker) {
			a.newWorkspace()
			a.expectUpdateRefused(a.newUpdate(&autov1alpha1.UpdateSource{URL: a.victim.url, Digest: a.victim.digest}), pulumiv1.ArtifactFetchFailedReason)
		},
	},
	{
		name: "foreign-digest-of-program", promise: "sources",
		does: "sets their own Program in `Update.spec.source`, with the digest of the victim's artifact",
		sees: "`SourceNotReady`: the artifact of the Program has another digest.",
		run: func(a *attacker) {
			a.newWorkspace()
			a.newProgram()
			a.expectUpdateRefused(a.newUpdate(&autov1alpha1.UpdateSource{
				Program: &autov1alpha1.ProgramSource{Name: a.name}, Digest: a.victim.digest,
			}), pulumiv1.SourceNotReadyReason)
		},
	},
	{
		name: "foreign-digest-of-git", promise: "sources",
		does: "sets their own git repository in `Update.spec.source`, with the digest of the victim's artifact",
		sees: "`ArtifactDigestMismatch`: the commit is checked out, and has another digest.",
		run: func(a *attacker) {
			_, sha, err := system.Git.Create(a.name, gitserver.Files{"Pulumi.yaml": "name: attacker\nruntime: yaml\n"})
			a.Expect(err).NotTo(HaveOccurred())
			a.newWorkspace()
			a.expectUpdateRefused(a.newUpdate(&autov1alpha1.UpdateSource{
				Git: &autov1alpha1.GitSource{URL: system.Git.URL(a.name), Ref: sha}, Digest: a.victim.digest,
			}), pulumiv1.ArtifactDigestMismatchReason)
			a.expectNotVisible(outputCanary)
		},
	},
}

// forgeryAttacks write what only controllers should write.
var forgeryAttacks = []attack{
	{
		name: "forged-gitrepository", promise: "sources",
		does: "writes the URL and digest of the victim's artifact into the status of a suspended GitRepository, which Flux's edit role allows",
		sees: "`SourceNotReady`: the artifact is not where this GitRepository publishes.",
		run: func(a *attacker) {
			a.forge(sourcev1.GitRepositoryKind, &sourcev1.GitRepository{ObjectMeta: a.meta(), Spec: sourcev1.GitRepositorySpec{
				URL: "http://" + webHost + "/page/x.git", Suspend: true, Interval: metav1.Duration{Duration: time.Hour},
			}}, a.victim.url, a.victim.digest, notPublished)
		},
	},
	{
		name: "forged-bucket", promise: "sources",
		does: "writes the URL of the victim's artifact into the status of a suspended Bucket, with a digest of zeros, to learn the correct digest",
		sees: "`SourceNotReady`: the artifact is not where this Bucket publishes. No message contains the digest of the content.",
		run: func(a *attacker) {
			a.forge(sourcev1.BucketKind, &sourcev1.Bucket{ObjectMeta: a.meta(), Spec: sourcev1.BucketSpec{
				BucketName: "x", Endpoint: "x.invalid", Suspend: true, Interval: metav1.Duration{Duration: time.Hour},
			}}, a.victim.url, noDigest, notPublished)
			a.expectNotVisible(hexOf(a.victim.digest))
		},
	},
	{
		name: "forged-externalartifact", promise: "sources",
		does: "publishes the victim's artifact as an ExternalArtifact, whose status tenants can write",
		sees: "`SourceNotReady`: the artifact is not where this ExternalArtifact publishes.",
		run: func(a *attacker) {
			a.forge(sourcev1.ExternalArtifactKind, &sourcev1.ExternalArtifact{ObjectMeta: a.meta()}, a.victim.url, a.victim.digest, notPublished)
		},
	},
	{
		name: "forged-metadata-url", promise: "network",
		does: "writes the address of a cloud's metadata service into the status of a suspended OCIRepository",
		sees: "`SourceNotReady`: nothing is fetched from this address.",
		run: func(a *attacker) {
			a.forge(sourcev1.OCIRepositoryKind, &sourcev1.OCIRepository{ObjectMeta: a.meta(), Spec: sourcev1.OCIRepositorySpec{
				URL: "oci://x.invalid/x", Suspend: true, Interval: &metav1.Duration{Duration: time.Hour},
			}}, "http://169.254.169.254/latest/meta-data/iam/security-credentials/", noDigest, notPublished)
		},
	},
	{
		name: "forged-loopback-url", promise: "network",
		does: "writes the address of the controller's own metrics into the status of an ExternalArtifact",
		sees: "`SourceNotReady`: nothing is fetched from this address. No message contains a digest of the page.",
		run: func(a *attacker) {
			a.forge(sourcev1.ExternalArtifactKind, &sourcev1.ExternalArtifact{ObjectMeta: a.meta()}, "http://127.0.0.1:8080/metrics", noDigest, notPublished)
			a.expectNotVisible("computed", "controller_runtime")
		},
	},
	{
		name: "forged-redirect", promise: "network",
		does: "publishes an ExternalArtifact on their own web server, which redirects to the victim's artifact",
		sees: "`ArtifactFetchFailed`: redirects are not followed.",
		run: func(a *attacker) {
			a.forge(sourcev1.ExternalArtifactKind, &sourcev1.ExternalArtifact{ObjectMeta: a.meta()},
				"http://"+webHost+"/redirect/"+strings.TrimPrefix(a.victim.url, "http://"), a.victim.digest,
				refusal{reasons: []string{pulumiv1.ArtifactFetchFailedReason}, says: "redirected to another host"})
			a.expectRequested("/redirect/" + strings.TrimPrefix(a.victim.url, "http://"))
		},
	},
	{
		name: "forged-stack-status", promise: "status",
		does: "writes the status of their Stack, Workspace, Update and Program",
		sees: "`Forbidden`: the edit role has no permission to write a status.",
		run: func(a *attacker) {
			workspace := &autov1alpha1.Workspace{ObjectMeta: a.meta()}
			a.create(workspace)
			update := &autov1alpha1.Update{ObjectMeta: a.meta(), Spec: autov1alpha1.UpdateSpec{
				WorkspaceName: "none", StackName: "dev", Type: autov1alpha1.UpdateTypePreview,
			}}
			a.create(update)
			for _, object := range []client.Object{
				a.createStack(func(spec *pulumiv1.StackSpec) { spec.Suspend = true }), a.newProgram(), workspace, update,
			} {
				patch := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"observedGeneration":7}}`))
				a.expectForbidden(a.client.Status().Patch(a.ctx, object, patch))
			}
		},
	},
}

// inTemplate sets an artifact in the template of the Workspace.
func inTemplate(url, digest string) func(*pulumiv1.StackSpec) {
	return func(spec *pulumiv1.StackSpec) {
		spec.WorkspaceTemplate.Spec.Flux = &autov1alpha1.FluxSource{URL: url, Digest: digest}
	}
}

// hexOf returns the digest without its algorithm.
func hexOf(digest string) string {
	_, encoded, _ := strings.Cut(digest, ":")
	return encoded
}

// newWorkspace creates a Workspace without a Stack.
func (a *attacker) newWorkspace(changes ...func(*autov1alpha1.WorkspaceSpec)) *autov1alpha1.Workspace {
	a.t.Helper()
	workspace := &autov1alpha1.Workspace{ObjectMeta: a.meta(), Spec: autov1alpha1.WorkspaceSpec{
		Image: system.Images.Pulumi.Reference, ImagePullPolicy: corev1.PullIfNotPresent, Resources: pressure.Smallest(),
		Env: []corev1.EnvVar{{Name: "PULUMI_BACKEND_URL", Value: "file:///tmp"}, {Name: "PULUMI_CONFIG_PASSPHRASE", Value: "x"}},
	}}
	for _, change := range changes {
		change(&workspace.Spec)
	}
	a.create(workspace)
	return workspace
}

// newUpdate creates an Update for the Workspace of the attack.
func (a *attacker) newUpdate(source *autov1alpha1.UpdateSource) *autov1alpha1.Update {
	a.t.Helper()
	update := &autov1alpha1.Update{ObjectMeta: a.meta(), Spec: autov1alpha1.UpdateSpec{
		WorkspaceName: a.name, StackName: "dev", Type: autov1alpha1.UpdateTypeUp, Source: source,
	}}
	a.create(update)
	return update
}

// forge creates a source of Flux, writes its status as if source-controller had published an artifact, and expects that a Stack with this
// source is refused.
func (a *attacker) forge(kind string, source client.Object, url, digest string, want refusal) {
	a.t.Helper()
	a.create(source)
	artifact := &meta.Artifact{
		URL: url, Digest: digest, Path: strings.TrimPrefix(url, "http://"), Revision: "main@sha1:" + strings.Repeat("a", 40),
		LastUpdateTime: metav1.Now(), Size: ptr.To[int64](512),
	}
	ready := []metav1.Condition{{
		Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: meta.SucceededReason, Message: "stored artifact", LastTransitionTime: metav1.Now(),
	}}
	// Flux's controllers may write their part of the status at the same time.
	a.eventually(func(g Gomega) {
		g.Expect(a.client.Get(a.ctx, client.ObjectKeyFromObject(source), source)).To(Succeed())
		before := source.DeepCopyObject().(client.Object)
		switch source := source.(type) {
		case *sourcev1.GitRepository:
			source.Status.Artifact, source.Status.Conditions, source.Status.ObservedGeneration = artifact, ready, source.Generation
		case *sourcev1.Bucket:
			source.Status.Artifact, source.Status.Conditions, source.Status.ObservedGeneration = artifact, ready, source.Generation
		case *sourcev1.OCIRepository:
			source.Status.Artifact, source.Status.Conditions, source.Status.ObservedGeneration = artifact, ready, source.Generation
		case *sourcev1.ExternalArtifact:
			source.Status.Artifact, source.Status.Conditions = artifact, ready
		}
		g.Expect(a.client.Status().Patch(a.ctx, source, client.MergeFrom(before))).To(Succeed())
	})
	a.expectRefused(a.createStack(fromFlux(kind, "", a.name)), want)
}

// pageCanary is a part of the page that the attacker's web server serves below /page/.
const pageCanary = "page-canary-55e1"

// networkAttacks make the controller connect to addresses that a tenant cannot reach.
var networkAttacks = []attack{
	{
		name: "git-metadata-service", promise: "network",
		does: "uses the metadata service of a cloud, in several notations, as a git repository",
		sees: "`SourceUnavailable`: the address is rejected, and no request is sent.",
		run: func(a *attacker) {
			a.expectURLsRefused(unavailable(addressRefused),
				"http://169.254.169.254/latest/meta-data", "http://[fd00:ec2::254]/latest", "http://[::ffff:169.254.169.254]/latest",
				"http://[64:ff9b:1::169.254.169.254]/latest", "http://[2606:50c0::5efe:169.254.169.254]/latest", "http://0xa9fea9fe/latest",
				"http://2852039166/latest", "http://0251.0376.0251.0376/latest", "http://169.254.43518/latest", "http://169.254.169.254./latest")
		},
	},
	{
		name: "github-app-address", promise: "network",
		does: "sets the address of the API of a GitHub App to a page of another server, with a `?` at its end",
		sees: "`AuthenticationFailed`: the address is rejected, and no request is sent.",
		run: func(a *attacker) {
			key, err := rsa.GenerateKey(rand.Reader, 2048)
			a.Expect(err).NotTo(HaveOccurred())
			a.create(&corev1.Secret{ObjectMeta: a.meta(), StringData: map[string]string{
				"githubAppID": "1", "githubAppInstallationID": "1", "githubAppBaseURL": "http://" + webHost + "/page/" + a.name + "?",
				"githubAppPrivateKey": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})),
			}})
			a.expectRefused(a.createStack(fromGit("https://x.invalid/x.git"), func(spec *pulumiv1.StackSpec) { spec.GitAuthSecret = a.name }),
				refusal{reasons: []string{pulumiv1.AuthenticationFailedReason}, says: "the address of the API of GitHub is not a URL"})
		},
	},
	{
		name: "git-loopback", promise: "network",
		does: "uses the controller's own ports as a git repository",
		sees: "`SourceUnavailable`: the address is rejected. No message contains any metrics.",
		run: func(a *attacker) {
			a.expectURLsRefused(unavailable(addressRefused),
				"http://127.0.0.1:8080/metrics", "http://localhost:8080/metrics", "http://[::1]:9440/healthz", "http://0.0.0.0:8080/metrics")
		},
	},
	{
		name: "git-files", promise: "network",
		does: "uses a file, and unsupported schemes, as a git repository",
		sees: "`SpecInvalid`, Stalled",
		run: func(a *attacker) {
			for _, url := range []string{"file:///var/run/secrets", "/data/artifacts", "git://" + webHost + "/x.git", "ext::sh -c id"} {
				a.expectRefused(a.numbered(a.newStack(fromGit(url))), refusal{reasons: []string{pulumiv1.SpecInvalidReason}, stalled: true})
			}
		},
	},
	{
		name: "git-redirect", promise: "network",
		does: "redirects from their own git server to the metadata service, to source-controller and to the controller's metrics",
		sees: "`SourceUnavailable` and `RepositoryNotFound`. No message contains any of the answers.",
		run: func(a *attacker) {
			local := []string{"/redirect/169.254.169.254/x.git", "/redirect/127.0.0.1:8080/metrics"}
			a.expectURLsRefused(unavailable(addressRefused), "http://"+webHost+local[0], "http://"+webHost+local[1])
			// Private addresses are allowed.
			other := "/redirect/source-controller.flux-system.svc.cluster.local./x.git"
			a.expectURLsRefused(noRepository, "http://"+webHost+other)
			a.expectRequested(append(local, other)...)
		},
	},
	{
		name: "git-page-of-others", promise: "network",
		does: "uses the metrics of the controller and the Service of source-controller as a git repository, to read the answer in a message",
		sees: "`RepositoryNotFound`. No message contains any of the answers.",
		run: func(a *attacker) {
			controller := runningController(a.ctx, a.WithT)
			a.expectURLsRefused(noRepository, "http://"+controller.Status.PodIP+":8080/metrics", "http://source-controller.flux-system.svc.cluster.local/x.git")
		},
	},
	{
		name: "git-error-page", promise: "network",
		does: "redirects to an error page on another host",
		sees: "`SourceUnavailable`. No message quotes the page.",
		run: func(a *attacker) {
			web := &corev1.Pod{}
			a.Expect(a.client.Get(a.ctx, client.ObjectKey{Namespace: attackerName, Name: "web"}, web)).To(Succeed())
			page := "/page/" + a.name + ".git"
			a.expectRefused(a.createStack(fromGit("http://"+webHost+"/redirect/"+web.Status.PodIP+":8080"+page)), unavailable("status 500"))
			a.expectRequested(page + "/info/refs")
			a.expectNotVisible(pageCanary)
		},
	},
	{
		name: "service-with-another-name", promise: "names",
		does: "makes the Service of their workspace an alias of the victim's agent",
		sees: "`NameConflict`: the controller connects to the address of the pod, and does not take over the Service.",
		run: func(a *attacker) {
			a.create(&corev1.Service{ObjectMeta: inNamespace(attackerName, a.name+"-workspace"), Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeExternalName, ExternalName: victimName + "-workspace." + victimName + ".svc.cluster.local",
			}})
			a.expectNameConflict()
		},
	},
}

// addressRefused is the advice in the message about an address that the controller does not connect to.
const addressRefused = "use the address of another machine"

// noRepository is the refusal of a Stack whose server answers, but not as a git server.
var noRepository = refusal{reasons: []string{pulumiv1.RepositoryNotFoundReason}}

// unavailable returns the refusal of a Stack whose git server cannot be used.
func unavailable(says string) refusal {
	return refusal{reasons: []string{pulumiv1.SourceUnavailableReason}, says: says}
}

// expectURLsRefused creates a Stack for each URL, and checks that it is refused and that its status contains nothing from the server.
func (a *attacker) expectURLsRefused(want refusal, urls ...string) {
	a.t.Helper()
	for _, url := range urls {
		stack := a.numbered(a.newStack(fromGit(url)))
		a.expectState(stack, want)
		said := fmt.Sprintf("%+v", stack.Status)
		for _, leak := range []string{"controller_runtime", "go_goroutines", "# HELP", "ok\n", pageCanary} {
			a.Expect(said).NotTo(ContainSubstring(leak), url)
		}
	}
}
