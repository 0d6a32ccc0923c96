package flux_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

const (
	// waved is how many Stacks a Kustomization applies, and canaries how many of them are in the first wave.
	waved, canaries = 20, 2
	// waves is the name of the StackRollout, and of its source.
	waves = "waves"
)

// wavedRollout is the StackRollout; SOAK is replaced.
const wavedRollout = `
apiVersion: auto.pulumi.com/v1alpha1
kind: StackRollout
metadata: {name: waves}
spec:
  sourceRef: {kind: GitRepository, name: waves}
  waves:
    - {name: canary, stacks: {matchLabels: {tier: canary}}, soak: SOAK}
    - {name: rest}
`

// wavedStack is one of the Stacks; NUMBER and TIER are replaced.
const wavedStack = `---
apiVersion: pulumi.com/v1
kind: Stack
metadata: {name: "stack-NUMBER", labels: {tier: TIER}}
spec:
  stack: "stack-NUMBER"
  backend: BACKEND
  fluxSource: {sourceRef: {kind: GitRepository, name: waves}}
  rolloutRef: {name: waves}
  retryInterval: 1s
  envRefs:
    PULUMI_CONFIG_PASSPHRASE: {type: Secret, secret: {name: pulumi, key: passphrase}}
`

// wavedKustomizations apply the Stacks and the StackRollout. One waits for both, and the other for what HEALTH says about the StackRollout.
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
func (p *fixture) wavedFiles(soak string) gitserver.Files {
	var stacks strings.Builder
	for i := range waved {
		tier := "other"
		if i < canaries {
			tier = "canary"
		}
		stacks.WriteString(strings.NewReplacer("NUMBER", fmt.Sprint(i), "TIER", tier).Replace(wavedStack))
	}
	return p.filled(gitserver.Files{
		"stacks/stacks.yaml": stacks.String(), "rollout/rollout.yaml": strings.ReplaceAll(wavedRollout, "SOAK", soak),
	})
}

// awaitWaves waits until the StackRollout is Ready, or not, with the reason for the commit.
func (p *fixture) awaitWaves(reason, sha string) *autov1alpha1.StackRollout {
	p.Helper()
	rollout := &autov1alpha1.StackRollout{}
	p.Eventually(func(g Gomega) {
		p.Get(waves, rollout)
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
	manifests := p.repository("manifests", p.wavedFiles("0s"))
	p.apply(wavedKustomizations)
	p.await(kustomizations, "stacks", status.CurrentStatus)
	p.await(kustomizations, "complete", status.CurrentStatus)
	rollout := p.awaitWaves(autov1alpha1.RolloutCompleteReason, "")
	p.Expect(rollout.Status.Done).To(Equal(fmt.Sprintf("%[1]d/%[1]d", waved)))

	// While the first wave soaks, both are ready, but one that waits for the condition Complete is not.
	p.commit(manifests, "manifests", p.wavedFiles("1h"))
	p.Eventually(func(g Gomega) {
		p.Get(waves, rollout)
		g.Expect(rollout.Spec.Waves[0].Soak).To(HaveField("Duration", time.Hour))
	}).Should(Succeed())
	sha := p.commit(programs, waves, systemtest.Returning(waves, 2))
	rollout = p.awaitWaves(autov1alpha1.RolloutSoakingReason, sha)
	p.Expect(rollout.Status.Done).To(Equal(fmt.Sprintf("%d/%d", canaries, waved)))
	for _, name := range []string{"stacks", "complete"} {
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
	p.awaitWaves(autov1alpha1.RolloutCompleteReason, sha)
	p.await(kustomizations, "complete", status.CurrentStatus)
	p.Eventually(func() []commitStatus { return end.states(sha) }).Should(ContainElement(HaveField("State", "success")))
	context := end.states(sha)[0].Context
	p.Expect(end.states(sha)).To(HaveEach(HaveField("Context", context)), "one status for all Stacks")

	// A revision that fails reaches the first wave only, and both Kustomizations fail.
	bad := p.commit(programs, waves, systemtest.Program(waves, "outputs:", "  x: ${missing}"))
	rollout = p.awaitWaves(autov1alpha1.RolloutHaltedReason, bad)
	p.Expect(rollout.Status.Failing).NotTo(BeEmpty())
	p.Eventually(func() bool { p.Get(waves, rollout); return conditions.IsStalled(rollout) }).Should(BeTrue(), "when a Stack is")
	p.reconcile(kustomizations, "complete")
	p.Eventually(func(g Gomega) {
		state, reason, message := ready(p.object(kustomizations, "complete"))
		g.Expect(state+" "+reason).To(Equal("False HealthCheckFailed"), message)
		g.Expect(message).To(ContainSubstring("StackRollout/" + p.Name + "/" + waves))
	}).Should(Succeed())
	p.Eventually(func() []commitStatus { return end.states(bad) }).Should(ContainElement(HaveField("State", "failure")))
	p.Expect(conditions.IsReady(p.stack("stack-19"))).To(BeTrue())
}

// completeExpression returns the healthCheckExprs of the guide for a Kustomization that waits until all Stacks have the revision.
func (p *fixture) completeExpression() string {
	p.Helper()
	guide := p.document("guides/waves.md")
	_, block, found := strings.Cut(guide, "  ```text\n  healthCheckExprs:\n")
	p.Expect(found).To(BeTrue())
	block, _, _ = strings.Cut(block, "  ```\n")
	return "  healthCheckExprs:\n" + block
}
