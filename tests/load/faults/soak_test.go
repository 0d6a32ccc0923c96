package faults_test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/load/faults/campaign"
)

// The leader freezes while a wave soaks. The other controller ends the soak, and the first one, which still believes in what it saw, gives nobody
// another turn when it continues.
func TestSoakLastsAsLongAsItSaysWhenTheLeaderFreezesInIt(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	const name, soak = "soaks", 20 * time.Second
	program := func(version int) gitserver.Files {
		return gitserver.Files{"Pulumi.yaml": fmt.Sprintf("name: %s\nruntime: yaml\noutputs:\n  version: %d\n", name, version)}
	}
	app, template, err := environment.Provide(ctx, name, program(1))
	g.Expect(err).NotTo(HaveOccurred())
	rollout := &autov1alpha1.StackRollout{Namespace: name, Name: name, Spec: autov1alpha1.StackRolloutSpec{
		SourceRef: autov1alpha1.RolloutSource{Kind: sourcev1.GitRepositoryKind, Name: name},
		Waves: []autov1alpha1.RolloutWave{
			{Name: "canary", Stacks: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "canary"}}, Soak: &metav1.Duration{Duration: soak}},
			{Name: "rest"},
		},
	}}
	g.Expect(environment.Client.Create(ctx, rollout)).To(Succeed())
	for _, tier := range []string{"canary", "rest"} {
		stack := template.DeepCopy()
		stack.Name, stack.Spec.Stack = tier, tier
		stack.Labels = map[string]string{"tier": tier}
		stack.Spec.RolloutRef = &pulumiv1.RolloutReference{Name: name}
		g.Expect(environment.Client.Create(ctx, stack)).To(Succeed())
	}
	await := func(reason, revision string) {
		t.Helper()
		g.Eventually(func(g Gomega) {
			g.Expect(environment.Client.Get(ctx, client.ObjectKeyFromObject(rollout), rollout)).To(Succeed())
			g.Expect(conditions.GetReason(rollout, "Ready")).To(Equal(reason), conditions.GetMessage(rollout, "Ready"))
			g.Expect(rollout.Status.Target.Revision).To(ContainSubstring(revision))
		}).WithContext(ctx).WithTimeout(2 * patience).WithPolling(campaign.PollInterval).Should(Succeed())
	}
	await(autov1alpha1.RolloutCompleteReason, "")

	sha, err := app.Repository.Commit(program(2))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(environment.Fetch(ctx, app)).To(Succeed())
	await(autov1alpha1.RolloutSoakingReason, sha)
	heal, err := freezeLeader(ctx, &target{fixture: environment})
	g.Expect(err).NotTo(HaveOccurred())
	await(autov1alpha1.RolloutSoakingReason, sha)
	g.Expect(rollout.Status.Turns).To(BeEmpty())
	await(autov1alpha1.RolloutCompleteReason, sha)
	g.Expect(heal(ctx)).To(Succeed())

	updates := &autov1alpha1.UpdateList{}
	g.Expect(environment.Client.List(ctx, updates, client.InNamespace(name))).To(Succeed())
	var canary, rest *autov1alpha1.Update
	for i := range updates.Items {
		if update := &updates.Items[i]; update.Spec.Source != nil && update.Spec.Source.Revision == rollout.Status.Target.Revision {
			if update.Spec.WorkspaceName == "canary" {
				g.Expect(canary).To(BeNil(), "it is updated once")
				canary = update
			} else {
				g.Expect(rest).To(BeNil(), "it is updated once")
				rest = update
			}
		}
	}
	g.Expect(rest.Status.StartTime.Sub(canary.Status.EndTime.Time)).To(BeNumerically(">=", soak-time.Second))
}
