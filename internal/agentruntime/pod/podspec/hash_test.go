package podspec

import (
	"testing"

	. "github.com/onsi/gomega"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

func TestHashesStayTheSameFromReleaseToRelease(t *testing.T) {
	const restarts = "This change replaces the pod of every Workspace when the controller is upgraded, with its plugins and caches. " +
		"If that is what you want, put the new value here and an entry into the changelog."
	g := NewWithT(t)
	plain := build(g, examples(t)["plain"])
	g.Expect(plain.RevisionHash).To(Equal("236ff888668f4112"), restarts)
	g.Expect(plain.AgentRevision).To(Equal("d3a706bee80b6a58"), restarts)
	customized := build(g, examples(t)["customized"])
	g.Expect(customized.RevisionHash).To(Equal("3271526c9b734ecb"), restarts)
}

func TestHashesAreInThePodTemplate(t *testing.T) {
	g := NewWithT(t)
	objects := build(g, parse(g, `podTemplate: {metadata: {annotations: {auto.pulumi.com/revision-hash: mine, auto.pulumi.com/agent-revision: mine}}}`))
	g.Expect(objects.StatefulSet.Spec.Template.Annotations).To(And(
		HaveKeyWithValue("auto.pulumi.com/revision-hash", objects.RevisionHash),
		HaveKeyWithValue("auto.pulumi.com/agent-revision", objects.AgentRevision)))
}

func TestOnlyWhatTheUserWantsOfThePodChangesTheRevisionHash(t *testing.T) {
	g := NewWithT(t)
	base := build(g, parse(g, `{}`))
	for _, spec := range []string{
		`serviceAccountName: other`,
		`securityProfile: baseline`,
		`image: other`,
		`imagePullPolicy: Always`,
		`envFrom: [{secretRef: {name: s}}]`,
		`env: [{name: A, value: b}]`,
		`resources: {limits: {cpu: "1"}}`,
		`podTemplate: {metadata: {labels: {a: b}}}`,
		`podTemplate: {spec: {terminationGracePeriodSeconds: 60}}`,
		`podTemplate: {spec: {hostNetwork: true}}`,
		`podTemplate: {spec: {containers: [{name: sidecar, image: x}]}}`,
	} {
		changed := build(g, parse(g, spec))
		g.Expect(changed.RevisionHash).NotTo(Equal(base.RevisionHash), spec)
		g.Expect(changed.AgentRevision).To(Equal(base.AgentRevision), spec)
	}
	for _, spec := range []string{
		`serviceAccountName: default`,
		`securityProfile: restricted`,
		`flux: {url: "http://source/b.tar.gz", digest: "sha256:b", dir: b}`,
		`local: {dir: /app}`,
		`projectInfo: {name: a, runtime: yaml}`,
		`stacks: [{name: dev, config: [{key: a, value: b}]}]`,
		`serviceTemplate: {metadata: {labels: {a: b}}}`,
		`pulumiLogLevel: 9`,
	} {
		same := build(g, parse(g, spec))
		g.Expect(same.RevisionHash).To(Equal(base.RevisionHash), spec)
		g.Expect(same.StatefulSet).To(Equal(base.StatefulSet), spec)
	}
}

func TestOnlyTheControllerChangesTheAgentRevision(t *testing.T) {
	g := NewWithT(t)
	workspace := parse(g, `{}`)
	base := build(g, workspace)
	for name, change := range map[string]func(*Settings){
		"image":       func(s *Settings) { s.AgentImage = "other" },
		"pull policy": func(s *Settings) { s.AgentImagePullPolicy = "Always" },
		"flags":       func(s *Settings) { s.AgentArgs = nil },
		"controller":  func(s *Settings) { s.Controller = "other" },
		"audience":    func(s *Settings) { s.TokenAudience = "other" },
		"key pair":    func(s *Settings) { s.SecretHash = "other" },
	} {
		changed := settings()
		change(&changed)
		objects, err := Build(workspace, changed)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(objects.AgentRevision).NotTo(Equal(base.AgentRevision), name)
		g.Expect(objects.RevisionHash).To(Equal(base.RevisionHash), name)
	}
	// Metadata that only the API server writes does not affect the objects.
	workspace.ResourceVersion, workspace.Generation = "7", 7
	workspace.Status = autov1alpha1.WorkspaceStatus{Address: "x"}
	g.Expect(build(g, workspace).StatefulSet).To(Equal(base.StatefulSet))
}

func TestDefaultServiceAccountIsThatOfWorkspacesThatNameNone(t *testing.T) {
	g := NewWithT(t)
	withDefault := settings()
	withDefault.DefaultServiceAccount = "runner"
	for spec, want := range map[string]string{
		`{}`: "runner", `serviceAccountName: default`: "default", `serviceAccountName: other`: "other",
		`podTemplate: {spec: {serviceAccountName: own}}`: "own",
	} {
		objects, err := Build(parse(g, spec), withDefault)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(objects.StatefulSet.Spec.Template.Spec.ServiceAccountName).To(Equal(want), spec)
	}
	changed, err := Build(parse(g, `{}`), withDefault)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(changed.RevisionHash).NotTo(Equal(build(g, parse(g, `{}`)).RevisionHash), "pods keep the identity that is no longer the default")
}
