package faults_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/load/faults/campaign"
)

const (
	// manyUpdates is how many updates run at the same time, and manyRestarts is how often the controller is restarted meanwhile.
	manyUpdates  = 20
	manyRestarts = 20
)

func TestUpdatesRunOnceHoweverOftenTheControllerRestarts(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	const name = "restarted"
	dir := filepath.Join(environment.system.Dir, "journals", name)
	g.Expect(os.MkdirAll(dir, 0o700)).To(Succeed())
	released := filepath.Join(environment.system.Dir, name+"-released")
	program := fmt.Sprintf("name: %s\nruntime: yaml\nresources:\n  r:\n    type: test:index:Sleep\n"+
		"    properties: {until: \"%s\", journal: \"%s/${pulumi.stack}\"}\n    options: {version: 0.1.0}\n", name, released, dir)
	_, template, err := environment.Provide(ctx, name, gitserver.Files{"Pulumi.yaml": program})
	g.Expect(err).NotTo(HaveOccurred())
	for i := range manyUpdates {
		stack := template.DeepCopy()
		stack.Name = fmt.Sprintf("%s-%d", name, i)
		stack.Spec.Stack = stack.Name
		g.Expect(environment.Client.Create(ctx, stack)).To(Succeed())
	}
	journals := func() int {
		files, _ := filepath.Glob(filepath.Join(dir, "*"))
		return len(files)
	}
	g.Eventually(journals).WithContext(ctx).WithTimeout(patience).WithPolling(campaign.PollInterval).Should(BeNumerically(">", 0))

	during := 0
	for i := range manyRestarts {
		before := environment.main.started()
		g.Expect(environment.main.signal([]syscall.Signal{syscall.SIGKILL, syscall.SIGTERM}[i%2])).To(Succeed())
		g.Expect(environment.main.awaitStart(ctx, before)).To(Succeed())
		if running := countRunning(ctx, g, name); running > 0 {
			during++
		}
		campaign.Wait(ctx, 700*time.Millisecond)
	}
	t.Logf("%d of %d restarts while updates ran", during, manyRestarts)
	g.Expect(during).To(Equal(manyRestarts))
	g.Expect(os.WriteFile(released, nil, 0o600)).To(Succeed())

	g.Eventually(func(g Gomega) {
		stacks := &pulumiv1.StackList{}
		g.Expect(environment.Client.List(ctx, stacks, client.InNamespace(name))).To(Succeed())
		for _, stack := range stacks.Items {
			g.Expect(conditions.IsReady(&stack)).To(BeTrue(), "%s: %v", stack.Name, stack.Status.Conditions)
		}
		g.Expect(stacks.Items).To(HaveLen(manyUpdates))
		g.Expect(countRunning(ctx, g, name)).To(BeZero())
		g.Expect(environment.locks()).To(BeEmpty())
	}).WithContext(ctx).WithTimeout(2 * patience).WithPolling(5 * campaign.PollInterval).Should(Succeed())
	updates := &autov1alpha1.UpdateList{}
	g.Expect(environment.Client.List(ctx, updates, client.InNamespace(name))).To(Succeed())
	g.Expect(updates.Items).To(HaveLen(manyUpdates))
	for _, update := range updates.Items {
		g.Expect(update.Status.State).To(Equal(autov1alpha1.UpdateStateSucceeded), update.Status.Message)
		content, err := os.ReadFile(filepath.Join(dir, update.Spec.WorkspaceName))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(strings.Fields(string(content))).To(Equal([]string{"create", "start", "create", "end"}))
	}
	_, problems := environment.Problems()
	g.Expect(problems).NotTo(HaveOccurred())
	t.Logf("%d updates succeeded, each of them ran once, after %d restarts", len(updates.Items), manyRestarts)
}

// countRunning returns how many Updates of the namespace have not ended.
func countRunning(ctx context.Context, g Gomega, namespace string) int {
	updates := &autov1alpha1.UpdateList{}
	g.Expect(environment.Client.List(ctx, updates, client.InNamespace(namespace))).To(Succeed())
	count := 0
	for _, update := range updates.Items {
		if !update.IsComplete() {
			count++
		}
	}
	return count
}
