package source

import (
	"context"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// signedRepository returns a GitRepository whose artifact Flux has verified, with the changes applied.
func signedRepository(changes ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
	object := repository("main@sha1:1", "sha256:a", "http://x")
	object.SetKind("GitRepository")
	object.SetGeneration(3)
	object.Object["spec"] = map[string]any{"verify": map[string]any{"mode": "HEAD", "secretRef": map[string]any{"name": "keys"}}}
	status := object.Object["status"].(map[string]any)
	status["observedGeneration"] = int64(3)
	status["conditions"] = []any{
		map[string]any{"type": "Ready", "status": "True", "observedGeneration": int64(3)},
		// source-controller does not update the observed generation of this condition when nothing changed.
		map[string]any{"type": "SourceVerified", "status": "True", "observedGeneration": int64(1), "message": "signed by somebody"},
	}
	for _, change := range changes {
		change(object)
	}
	return object
}

func setIn(value any, path ...string) func(*unstructured.Unstructured) {
	return func(object *unstructured.Unstructured) {
		if err := unstructured.SetNestedField(object.Object, value, path...); err != nil {
			panic(err)
		}
	}
}

func conditionIs(index int, status string) func(*unstructured.Unstructured) {
	return func(object *unstructured.Unstructured) {
		conditions := object.Object["status"].(map[string]any)["conditions"].([]any)
		conditions[index].(map[string]any)["status"] = status
	}
}

func ociWith(verify map[string]any) func(*unstructured.Unstructured) {
	return func(object *unstructured.Unstructured) {
		object.SetKind("OCIRepository")
		object.Object["spec"] = map[string]any{"verify": verify}
		revision := "latest@sha256:" + strings.Repeat("a", 64)
		reports(revision, "True", "verified signature of revision "+revision)(object)
	}
}

func TestArtifactIsVerifiedWhenOneReadOfItsSourceSaysSo(t *testing.T) {
	identity := []any{map[string]any{"issuer": "^https://x$", "subject": "^y$"}}
	for _, test := range []struct {
		name     string
		source   *unstructured.Unstructured
		verified bool
		says     string
	}{
		{"verified", signedRepository(), true, ""},
		{"by a key in a Secret, OCI", signedRepository(ociWith(map[string]any{"provider": "cosign", "secretRef": map[string]any{"name": "k"}})), true, ""},
		{"by an identity, OCI", signedRepository(ociWith(map[string]any{"provider": "cosign", "matchOIDCIdentity": identity})), true, ""},
		{"by anybody, OCI", signedRepository(ociWith(map[string]any{"provider": "cosign"})), false, "matchOIDCIdentity"},
		{"not set up", signedRepository(setIn(map[string]any{}, "spec")), false, "set its spec.verify"},
		{"without a key", signedRepository(setIn(map[string]any{"mode": "HEAD"}, "spec", "verify")), false, "secretRef"},
		{"with files of other sources", signedRepository(setIn([]any{map[string]any{"repository": map[string]any{"name": "x"}}}, "spec", "include")), false, "remove its spec.include"},
		{"set up just now", signedRepository(setIn([]any{}, "status", "conditions")), false, "not been verified yet"},
		{"refused", signedRepository(conditionIs(1, "False")), false, "was refused: signed by somebody"},
		{"verified for what comes next", signedRepository(conditionIs(0, "Unknown")), false, "is not ready"},
		{"of an older generation", signedRepository(setIn(int64(2), "status", "observedGeneration")), false, "is not ready"},
		{"a Bucket", signedRepository(func(o *unstructured.Unstructured) { o.SetKind("Bucket") }), false, "cannot be verified"},
		{"an ExternalArtifact", signedRepository(func(o *unstructured.Unstructured) { o.SetKind("ExternalArtifact") }), false, "cannot be verified"},
		{"a GitRepository of another group", signedRepository(func(o *unstructured.Unstructured) { o.SetAPIVersion("example.com/v1") }), false, "cannot be verified"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			kept, err := CacheTransform(test.source)
			g.Expect(err).NotTo(HaveOccurred())
			found, err := artifactOf(kept.(*unstructured.Unstructured))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found.Verification.Verified).To(Equal(test.verified))
			g.Expect(found.Verification.Problem).To(ContainSubstring(test.says))
			before := signedRepository(setIn(found.Revision, "status", "artifact", "revision"))
			g.Expect(fluxChanged(before, test.source)).To(Equal(!test.verified || before.GetKind() != test.source.GetKind()), "the Stack is woken by it")

			if problem := found.Verification.check(found.Digest, ""); test.verified {
				g.Expect(problem).NotTo(HaveOccurred())
			} else {
				g.Expect(problemIn(g, problem).Reason).To(Equal(pulumiv1.SourceNotVerifiedReason))
			}
		})
	}
}

const (
	publishedSHA = "1111111111111111111111111111111111111111"
	nextSHA      = "2222222222222222222222222222222222222222"
)

// reports returns a change to a source that publishes the revision: its condition SourceVerified has the status and the message.
func reports(revision, status, message string) func(*unstructured.Unstructured) {
	return func(object *unstructured.Unstructured) {
		conditionIs(1, status)(object)
		conditions := object.Object["status"].(map[string]any)["conditions"].([]any)
		conditions[1].(map[string]any)["message"] = message
		setIn(revision, "status", "artifact", "revision")(object)
	}
}

// The messages are those of source-controller.
func TestWhatWasVerifiedStaysSoUntilItsSourceRefusesIt(t *testing.T) {
	const branch, tag = "main@sha1:" + publishedSHA, "v1.0.0@sha1:" + publishedSHA
	published, next := "sha256:"+strings.Repeat("a", 64), "sha256:"+strings.Repeat("b", 64)
	oci := ociWith(map[string]any{"provider": "cosign", "secretRef": map[string]any{"name": "k"}})
	refusedOCI := func(digest string) string {
		return "failed to verify the signature using provider 'cosign': no matching signatures were found for 'registry.example.com/x@" + digest + "'"
	}
	type changes = []func(*unstructured.Unstructured)
	for name, test := range map[string]struct {
		changes changes
		lasts   bool // it still counts as verified
		revoked bool // and will not do so later
	}{
		"the next one is on its way":        {changes{conditionIs(0, "Unknown")}, true, false},
		"the next commit was refused":       {changes{reports(branch, "False", "signature verification of commit '"+nextSHA+"' failed: no key")}, true, false},
		"the next OCI artifact was refused": {changes{oci, reports("latest@"+published, "False", refusedOCI(next))}, true, false},
		"the next OCI artifact was published unverified, as notation can": {
			changes{oci, reports("latest@"+next, "True", "verified signature of revision latest@"+published)}, true, false},
		"the next commit is verified already":     {changes{reports(branch, "True", "verified signature of\n\t- commit '"+nextSHA+"' with key 'x'")}, true, false},
		"the source looks at it again":            {changes{setIn([]any{}, "status", "conditions")}, true, false},
		"the git server fails":                    {changes{conditionIs(0, "False")}, true, false},
		"the key of the commit was revoked":       {changes{reports(branch, "False", "signature verification of commit '"+publishedSHA+"' failed: no key")}, false, true},
		"the key of the tag's commit was revoked": {changes{reports("refs/tags/"+tag, "False", "signature verification of commit '"+publishedSHA+"' failed: no key")}, false, true},
		"the key of the artifact was revoked":     {changes{oci, reports("latest@"+published, "False", refusedOCI(published))}, false, true},
		"verification was switched off":           {changes{setIn(map[string]any{}, "spec")}, false, true},
		"a tag has a name that looks like a refusal": {
			changes{reports(tag, "False", "signature verification of tag 'signature verification of commit '"+nextSHA+"' failed@"+nextSHA+"' failed: no key")},
			false, false},
		"the registry fails, and names something else": {
			changes{oci, reports("latest@"+published, "False", "failed to verify the signature using provider 'cosign': GET /v2/x/manifests/"+next+": EOF")},
			false, false},
		"the keys are gone":                         {changes{reports(branch, "False", "public keys secret error: secrets \"keys\" not found")}, false, false},
		"the registry fails":                        {changes{oci, reports("latest@"+published, "False", "failed to verify the signature using provider 'cosign': EOF")}, false, false},
		"what is published is not known":            {changes{reports("", "False", "signature verification of commit '"+nextSHA+"' failed")}, false, false},
		"a tag was refused, whose name says little": {changes{reports(tag, "False", "signature verification of tag 'v2@"+nextSHA+"' failed: no key")}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			now, err := artifactOf(signedRepository(test.changes...))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(now.Verification.Verified).To(BeFalse())
			g.Expect(now.Verification.check(now.Digest, "sha256:other")).NotTo(Succeed())
			if err := now.Verification.check(now.Digest, now.Digest); test.lasts {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				problem := problemIn(g, err)
				g.Expect(problem.Reason).To(Equal(pulumiv1.SourceNotVerifiedReason))
				g.Expect(problem.Revoked).To(Equal(test.revoked))
			}
		})
	}
}

// An Update may run an artifact that its source has replaced, if that was recorded as verified.
func TestArtifactThatIsPublishedNoLongerNeedsARecordThatItWasVerified(t *testing.T) {
	g := NewWithT(t)
	kind := sourcev1.GroupVersion.WithKind(sourcev1.GitRepositoryKind)
	mapper := apimeta.NewDefaultRESTMapper([]schema.GroupVersion{kind.GroupVersion()})
	mapper.Add(kind, apimeta.RESTScopeNamespace)
	set := &Set{Sources: []Source{&Flux{Mapper: mapper, APIReader: fake.NewClientBuilder().WithObjects(signedRepository()).Build()}}}
	from := &autov1alpha1.UpdateSource{SourceRef: &meta.NamespacedObjectKindReference{Kind: kind.Kind, Name: "app"}, Digest: "sha256:a"}
	g.Expect(set.CheckVerified(t.Context(), "team", from, "")).To(Succeed())

	from.Digest = "sha256:earlier"
	g.Expect(set.CheckVerified(t.Context(), "team", from, "sha256:a", from.Digest)).To(Succeed())
	problem := problemIn(g, set.CheckVerified(t.Context(), "team", from, "sha256:a"))
	g.Expect(problem.Reason).To(Equal(pulumiv1.SourceNotVerifiedReason))
	g.Expect(problem.Revoked).To(BeFalse())
	g.Expect(problem.Message).To(And(ContainSubstring("GitRepository team/app"), ContainSubstring("sha256:earlier")))
}

// offer is a source that offers an artifact to every Stack.
type offer struct {
	Source
	artifact *Artifact
}

func (offer) IsUsedBy(*pulumiv1.Stack) bool { return true }

func (o offer) Resolve(context.Context, *pulumiv1.Stack, bool) (*Artifact, error) {
	return o.artifact, nil
}

// counted is a source with a cache and a server. It counts the requests to the server.
type counted struct {
	Source
	cached, served string
	requests       int
}

func (*counted) IsUsedBy(*pulumiv1.Stack) bool { return true }
func (*counted) Key(*pulumiv1.Stack) string    { return "GitRepository/a/b" }

func (c *counted) Resolve(_ context.Context, _ *pulumiv1.Stack, live bool) (*Artifact, error) {
	if !live {
		return &Artifact{Digest: c.cached, Watched: true}, nil
	}
	c.requests++
	return &Artifact{Digest: c.served, Watched: true}, nil
}

func TestServerIsAskedOnceWhetherTheCacheIsBehind(t *testing.T) {
	g := NewWithT(t)
	from := &counted{cached: "sha256:1", served: "sha256:1"}
	set := &Set{Sources: []Source{from}}
	stack := &pulumiv1.Stack{}
	stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Commit: "sha256:2"}
	offers := func() string {
		found, err := set.Resolve(t.Context(), stack)
		g.Expect(err).NotTo(HaveOccurred())
		return found.Digest
	}
	for range 3 {
		g.Expect(offers()).To(Equal("sha256:1"))
	}
	g.Expect(from.requests).To(Equal(1))
	from.served = "sha256:3"
	_, err := set.Refresh(t.Context(), stack)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(offers()).To(Equal("sha256:3"), "since then the cache is known to be behind")
}

func TestSourcesWithoutVerificationAreRefusedForGood(t *testing.T) {
	commit, err := newDriver(t, GitOptions{}).stacks.Subscribe(queryOf("a", branch(firstSHA)))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for name, found := range map[string]*Artifact{
		"git":      commit,
		"program":  readyProgram(t),
		"bucket":   mustArtifact(t, signedRepository(func(o *unstructured.Unstructured) { o.SetKind("Bucket") })),
		"external": mustArtifact(t, signedRepository(func(o *unstructured.Unstructured) { o.SetKind("ExternalArtifact") })),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			set := &Set{Sources: []Source{offer{artifact: found}}}
			g.Expect(set.Resolve(t.Context(), &pulumiv1.Stack{})).To(Equal(found))
			_, err := set.Resolve(t.Context(), &pulumiv1.Stack{Spec: pulumiv1.StackSpec{RequireVerified: true}})
			g.Expect(err).To(HaveOccurred())
			set.RequireVerified = true
			_, err = set.Resolve(t.Context(), &pulumiv1.Stack{})
			problem := problemIn(g, err)
			g.Expect(problem.Reason).To(Equal(pulumiv1.SourceNotVerifiedReason))
			g.Expect(problem.Permanent).To(BeTrue())
		})
	}
	NewWithT(t).Expect((&Set{RequireVerified: true}).CheckUnsourced(&pulumiv1.Stack{})).NotTo(Succeed())
}

// readyProgram is the artifact of a Program.
func readyProgram(t *testing.T) *Artifact {
	t.Helper()
	g := NewWithT(t)
	program := &pulumiv1.Program{Namespace: "team", Name: "app"}
	program.Status.Artifact = &meta.Artifact{Digest: "sha256:a"}
	conditions.MarkTrue(program, meta.ReadyCondition, meta.SucceededReason, "ready")
	scheme := runtime.NewScheme()
	g.Expect(pulumiv1.AddToScheme(scheme)).To(Succeed())
	programs := &Programs{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(program).WithStatusSubresource().Build()}
	stack := &pulumiv1.Stack{Namespace: "team", Spec: pulumiv1.StackSpec{ProgramRef: &pulumiv1.ProgramReference{Name: "app"}}}
	found, err := programs.Resolve(t.Context(), stack, false)
	g.Expect(err).NotTo(HaveOccurred())
	return found
}

func mustArtifact(t *testing.T, object *unstructured.Unstructured) *Artifact {
	t.Helper()
	found, err := artifactOf(object)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return found
}

func TestOnlyTheSourceOfAStackIsItsOwn(t *testing.T) {
	set := &Set{Sources: []Source{&GitSubscriber{}, &Programs{}, &Flux{}}}
	flux := func(namespace, name, digest, dir string) *autov1alpha1.UpdateSource {
		return &autov1alpha1.UpdateSource{Digest: digest, Dir: dir, SourceRef: &meta.NamespacedObjectKindReference{
			APIVersion: "source.toolkit.fluxcd.io/v1", Kind: "GitRepository", Namespace: namespace, Name: name,
		}}
	}
	git := func(url, ref, dir string) *autov1alpha1.UpdateSource {
		return &autov1alpha1.UpdateSource{Digest: "sha256:x", Dir: dir, Git: &autov1alpha1.GitSource{URL: url, Ref: ref}}
	}
	program := func(name, dir string) *autov1alpha1.UpdateSource {
		return &autov1alpha1.UpdateSource{Digest: "sha256:x", Dir: dir, Program: &autov1alpha1.ProgramSource{Name: name}}
	}
	fluxStack := &pulumiv1.Stack{Namespace: "bank", Name: "app"}
	fluxStack.Spec.FluxSource = &pulumiv1.FluxSource{Dir: "infra"}
	fluxStack.Spec.FluxSource.SourceRef.Kind, fluxStack.Spec.FluxSource.SourceRef.Name = "GitRepository", "app"
	gitStack := fluxStack.DeepCopy()
	gitStack.Spec.FluxSource, gitStack.Spec.ProjectRepo, gitStack.Spec.RepoDir, gitStack.Spec.Branch = nil, "https://git/app", "infra", "main"
	gitStack.Status.LastUpdate = &pulumiv1.StackUpdateStatus{LastAttemptedCommit: "new", LastSuccessfulCommit: "old"}
	gitStack.Status.Plan = &pulumiv1.PlanStatus{Commit: "planned"}
	programStack := fluxStack.DeepCopy()
	programStack.Spec.FluxSource, programStack.Spec.ProgramRef = nil, &pulumiv1.ProgramReference{Name: "app"}
	for name, tt := range map[string]struct {
		stack *pulumiv1.Stack
		from  *autov1alpha1.UpdateSource
		own   bool
	}{
		"its source":                   {fluxStack, flux("", "app", "sha256:x", "infra"), true},
		"its source, with a namespace": {fluxStack, flux("bank", "app", "sha256:x", "./infra/"), true},
		"another source":               {fluxStack, flux("", "mine", "sha256:x", "infra"), false},
		"one of another namespace":     {fluxStack, flux("shop", "app", "sha256:x", "infra"), false},
		"another directory":            {fluxStack, flux("", "app", "sha256:x", "infra/modules"), false},
		"a URL":                        {fluxStack, &autov1alpha1.UpdateSource{URL: "https://x", Digest: "sha256:x", Dir: "infra"}, false},
		"a git repository":             {fluxStack, git("https://git/app", "new", "infra"), false},
		"nothing":                      {fluxStack, nil, false},
		"its commit":                   {gitStack, git("https://git/app", "new", "infra"), true},
		"its last good commit":         {gitStack, git("https://git/app", "old", "infra"), true},
		"its planned commit":           {gitStack, git("https://git/app", "planned", "infra"), true},
		"another commit":               {gitStack, git("https://git/app", "fork", "infra"), false},
		"no commit":                    {gitStack, git("https://git/app", "", "infra"), false},
		"another repository":           {gitStack, git("https://git/mine", "new", "infra"), false},
		"another directory there":      {gitStack, git("https://git/app", "new", ""), false},
		"its Program":                  {programStack, program("app", ""), true},
		"another Program":              {programStack, program("mine", ""), false},
		"a Program for a Flux source":  {fluxStack, program("app", ""), false},
	} {
		NewWithT(t).Expect(set.IsOwn(tt.stack, tt.from)).To(Equal(tt.own), name)
	}
}
