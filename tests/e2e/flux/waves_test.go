package flux_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	// waved is how many Stacks a StackRollout has, and canaries how many of them are in the first wave.
	waved, canaries = 20, 2
	// waves is the name of the StackRollout, and of its source.
	waves = "waves"
	// both is the name of another StackRollout of the same source, with as many Stacks, which are in the same Kustomization.
	both = "both"
)

// wavedRollout is a StackRollout; ROLLOUT is replaced.
const wavedRollout = `
apiVersion: auto.pulumi.com/v1alpha1
kind: StackRollout
metadata: {name: ROLLOUT}
spec:
  sourceRef: {kind: GitRepository, name: waves}
  waves:
    - {name: canary, stacks: {matchLabels: {tier: canary}}, soak: 1h}
    - {name: rest}
`

// wavedStack is one of the Stacks; NUMBER, TIER and ROLLOUT are replaced.
const wavedStack = `---
apiVersion: pulumi.com/v1
kind: Stack
metadata: {name: "stack-NUMBER", labels: {tier: TIER}}
spec:
  stack: "stack-NUMBER"
  backend: BACKEND
  fluxSource: {sourceRef: {kind: GitRepository, name: waves}}
  rolloutRef: {name: ROLLOUT}
  retryInterval: 1s
  envRefs:
    PULUMI_CONFIG_PASSPHRASE: {type: Secret, secret: {name: pulumi, key: passphrase}}
`

// wavedKustomizations apply Stacks and StackRollouts: one only Stacks, one only their StackRollout, and one another StackRollout with its Stacks.
const wavedKustomizations = `
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: stacks}
spec:
  interval: 1h
  retryInterval: 1h
  timeout: 10m
  path: ./stacks
  prune: true
  wait: true
  targetNamespace: NAMESPACE
  sourceRef: {kind: GitRepository, name: manifests}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: complete}
spec:
  interval: 1h
  retryInterval: 1h
  timeout: 10m
  path: ./rollout
  prune: true
  wait: true
  targetNamespace: NAMESPACE
  sourceRef: {kind: GitRepository, name: manifests}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: both}
spec:
  interval: 1h
  retryInterval: 1h
  timeout: 10m
  path: ./both
  prune: true
  wait: true
  targetNamespace: NAMESPACE
  sourceRef: {kind: GitRepository, name: manifests}
`

// wavesAlert sets the status of the commit for the StackRollout alone.
const wavesAlert = `
apiVersion: notification.toolkit.fluxcd.io/v1beta3
kind: Provider
metadata: {name: commit-status}
spec: {type: gitea, address: MESSENGER/acme/alerted, secretRef: {name: git-token}}
---
apiVersion: notification.toolkit.fluxcd.io/v1beta3
kind: Alert
metadata: {name: commit-status}
spec:
  providerRef: {name: commit-status}
  eventSeverity: info
  eventSources: [{kind: StackRollout, name: waves}]
`

// wavedFiles returns the files that the Kustomizations apply.
func (p *fixture) wavedFiles() gitserver.Files {
	stacksOf := func(rollout, prefix string) string {
		var stacks strings.Builder
		for i := range waved {
			tier := "other"
			if i < canaries {
				tier = "canary"
			}
			stacks.WriteString(strings.NewReplacer("NUMBER", prefix+fmt.Sprint(i), "TIER", tier, "ROLLOUT", rollout).Replace(wavedStack))
		}
		return stacks.String()
	}
	return p.filled(gitserver.Files{
		"stacks/stacks.yaml": stacksOf(waves, ""), "rollout/rollout.yaml": strings.ReplaceAll(wavedRollout, "ROLLOUT", waves),
		"both/both.yaml": strings.ReplaceAll(wavedRollout, "ROLLOUT", both) + stacksOf(both, both+"-"),
	})
}

// awaitWaves waits until the StackRollout is Ready, or not, with the reason for the commit.
func (p *fixture) awaitWaves(name, reason, sha string) *autov1alpha1.StackRollout {
	p.Helper()
	rollout := &autov1alpha1.StackRollout{}
	p.Eventually(func(g Gomega) {
		p.Get(name, rollout)
		g.Expect(conditions.GetReason(rollout, meta.ReadyCondition)).To(Equal(reason), "%+v", rollout.Status)
		g.Expect(rollout.Status.Target.Revision).To(HaveSuffix(sha))
		g.Expect(rollout.Status.ObservedGeneration).To(Equal(rollout.Generation))
	}).Should(Succeed())
	return rollout
}

func TestKustomizationIsReadyWhileWavesSoakAndFailsWithThem(t *testing.T) {
	p := begin(t, "waved")
	p.Patience = 5 * time.Minute
	end := receive(t)
	p.Create(p.Secret("git-token", map[string]string{"token": gitToken}))
	p.apply(strings.ReplaceAll(wavesAlert, "MESSENGER", end.URL))
	programs := p.repository(waves, systemtest.Returning(waves, 1))
	p.repository("manifests", p.wavedFiles())
	p.apply(wavedKustomizations)

	// New Stacks are not ready before their first wave, so a Kustomization with them waits. A promotion of all waves ends that.
	p.await(kustomizations, "complete", status.CurrentStatus)
	for kustomization, name := range map[string]string{"stacks": waves, both: both} {
		soaks := p.awaitWaves(name, autov1alpha1.RolloutSoakingReason, "")
		p.await(kustomizations, kustomization, status.InProgressStatus)
		p.Create(&autov1alpha1.Approval{ObjectMeta: p.Meta("first-" + name), Spec: autov1alpha1.ApprovalSpec{
			Rollout: name, Revision: soaks.Status.Target.Revision, Decision: autov1alpha1.ApprovalApprove, By: "admin"}})
		p.await(kustomizations, kustomization, status.CurrentStatus)
	}
	p.awaitWaves(both, autov1alpha1.RolloutCompleteReason, "")
	rollout := p.awaitWaves(waves, autov1alpha1.RolloutCompleteReason, "")
	p.Expect(rollout.Status.Done).To(Equal(fmt.Sprintf("%[1]d/%[1]d", waved)))

	// While the first wave soaks, all of them are ready, but one that waits for the condition Complete is not.
	sha := p.commit(programs, waves, systemtest.Returning(waves, 2))
	p.awaitWaves(both, autov1alpha1.RolloutSoakingReason, sha)
	rollout = p.awaitWaves(waves, autov1alpha1.RolloutSoakingReason, sha)
	p.Expect(rollout.Status.Done).To(Equal(fmt.Sprintf("%d/%d", canaries, waved)))
	for _, name := range []string{"stacks", "complete", both} {
		p.reconcile(kustomizations, name)
		p.await(kustomizations, name, status.CurrentStatus)
	}
	p.apply(strings.Split(wavedKustomizations, "---")[1] + p.completeExpression())
	p.await(kustomizations, "complete", status.InProgressStatus)
	p.Expect(conditions.IsReady(p.stack("stack-19"))).To(BeTrue(), "a Stack that waits is ready with what it has")
	p.Expect(end.states(sha)).To(BeEmpty(), "it is decided when all have it")

	// Until its timeout, the Kustomization that waits applies nothing else, also no StackRollout with another soak. A promotion of all waves
	// lets all others follow.
	p.Create(&autov1alpha1.Approval{ObjectMeta: p.Meta("urgent"), Spec: autov1alpha1.ApprovalSpec{
		Rollout: waves, Revision: rollout.Status.Target.Revision, Decision: autov1alpha1.ApprovalApprove, By: "admin"}})
	p.awaitWaves(waves, autov1alpha1.RolloutCompleteReason, sha)
	p.await(kustomizations, "complete", status.CurrentStatus)
	p.Eventually(func() []commitStatus { return end.states(sha) }).Should(ContainElement(HaveField("State", "success")))
	context := end.states(sha)[0].Context
	p.Expect(end.states(sha)).To(HaveEach(HaveField("Context", context)), "one status for all Stacks")

	// A revision that fails reaches the first waves only. The Kustomizations with the StackRollouts fail, with and without expressions.
	bad := p.commit(programs, waves, systemtest.Program(waves, "outputs:", "  x: ${missing}"))
	for kustomization, name := range map[string]string{"complete": waves, both: both} {
		rollout = p.awaitWaves(name, autov1alpha1.RolloutHaltedReason, bad)
		p.Expect(rollout.Status.Failing).NotTo(BeEmpty())
		p.Eventually(func() bool { p.Get(name, rollout); return conditions.IsStalled(rollout) }).Should(BeTrue(), "when a Stack is")
		p.reconcile(kustomizations, kustomization)
		p.Eventually(func(g Gomega) {
			state, reason, message := ready(p.object(kustomizations, kustomization))
			g.Expect(state+" "+reason).To(Equal("False HealthCheckFailed"), message)
			g.Expect(message).To(MatchRegexp("Stack(Rollout)?/"+p.Name+"/"), "what kustomize-controller sees first")
			if kustomization == "complete" {
				g.Expect(message).To(ContainSubstring("StackRollout/" + p.Name + "/" + waves))
			}
		}).Should(Succeed())
	}
	p.Eventually(func() []commitStatus { return end.states(bad) }).Should(ContainElement(HaveField("State", "failure")))
	p.Expect(conditions.IsReady(p.stack("stack-19"))).To(BeTrue())
}

// completeExpression returns the healthCheckExprs of the guide for a Kustomization that waits until all Stacks have the revision.
func (p *fixture) completeExpression() string {
	p.Helper()
	const beginning = "  healthCheckExprs:\n    - apiVersion: auto.pulumi.com/v1alpha1\n"
	_, block, found := strings.Cut(p.document("guides/kustomizations.md"), beginning)
	p.Expect(found).To(BeTrue())
	block, _, _ = strings.Cut(block, "```\n")
	return beginning + block
}

// TestThreeWavesOfTheGuideGoForwardAndBack applies the first manifests of the guide, with another repository and backend and shorter soaks, and runs its
// commands for the way back.
func TestThreeWavesOfTheGuideGoForwardAndBack(t *testing.T) {
	p := begin(t, "guided-waves")
	commandLine, err := programs.Path(t.Context(), programs.CommandLine, nil)
	p.Succeed(err)
	flux, err := tools.Path(t.Context(), "flux", nil)
	p.Succeed(err)
	const credentials = `      type: Secret
      secret:
        name: pulumi-access-token
        key: token
`
	here := strings.NewReplacer("namespace: default", "namespace: "+p.Name, "stack: acme/network/eu", "stack: eu\n  backend: "+system.BackendURL,
		"soak: 1h", "soak: 1s", "soak: 4h", "soak: 1s", "PULUMI_ACCESS_TOKEN:\n"+credentials,
		"PULUMI_CONFIG_PASSPHRASE:\n"+strings.NewReplacer("pulumi-access-token", "pulumi", "key: token", "key: passphrase").Replace(credentials),
		"flux pulumi", `"`+commandLine+`" --namespace=`+p.Name, "flux reconcile", `HOME="`+filepath.Join(system.Dir, "flux-home")+`" "`+flux+`" --namespace=`+p.Name+" reconcile")
	manifests, commands := p.guide("waves.md", here)
	program := func(lines ...string) gitserver.Files {
		return gitserver.Files{"network/Pulumi.yaml": systemtest.Program("network", lines...)["Pulumi.yaml"]}
	}
	good := program("outputs:", "  x: 1")
	repository := p.repository("infrastructure", good)
	for _, number := range []string{"2", "3", "4"} { // the guide has the canary
		stack := strings.Split(manifests[0], "---\n")[0]
		p.apply(strings.NewReplacer("name: network-eu", "name: network-"+number, "stack: eu", "stack: network-"+number, "tier: canary", "tier: other").Replace(stack))
	}
	p.apply(manifests[0])
	show := commands[0]
	p.Expect(show).To(ContainSubstring("rollout show fleet"))
	// The last wave waits for its promotion, also for the first revision.
	revision := p.awaitWaves("fleet", autov1alpha1.PromotionRequiredReason, "").Status.Target.Revision
	p.Expect(p.shell(show)).To(MatchRegexp(`(?m)^canary +Complete +1 +1 `))
	promote := commands[slices.IndexFunc(commands, func(command string) bool { return strings.Contains(command, "promote fleet --all") })]
	p.shell(strings.ReplaceAll(promote, "main@sha1:…", revision))
	p.awaitWaves("fleet", autov1alpha1.RolloutCompleteReason, "")

	bad := p.commit(repository, "infrastructure", program("outputs:", "  x: ${missing}"))
	p.awaitWaves("fleet", autov1alpha1.RolloutHaltedReason, bad)
	p.Expect(p.shell(show)).To(ContainSubstring(p.Name + "/network-eu fails: "))

	// The revert is in git, and the source has not seen it yet.
	revert, err := repository.Commit(good)
	p.Succeed(err)
	p.shell(strings.ReplaceAll(strings.Split(promote, "\n")[0], "main@sha1:…", "main@sha1:"+revert))
	p.Eventually(func(g Gomega) {
		rollout := &autov1alpha1.StackRollout{}
		p.Get("fleet", rollout)
		g.Expect(rollout.Status.Target.Revision).To(HaveSuffix(revert))
	}).Should(Succeed())
	p.shell(strings.ReplaceAll(promote, "main@sha1:…", "main@sha1:"+revert))
	p.Expect(p.awaitWaves("fleet", autov1alpha1.RolloutCompleteReason, revert).Status.Done).To(Equal("4/4"))
	p.Expect(p.stack("network-2").Status.LastUpdate.Revision).To(Equal(revision), "for the others, the revert is what they have")
}
