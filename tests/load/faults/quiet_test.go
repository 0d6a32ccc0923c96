package faults_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/load/faults/campaign"
)

const (
	// readyStacks are deployed before the controller is restarted.
	readyStacks = 200
	// rareEvery is the number of runs of which one has a rare kind of fault.
	quietTime = 5 * time.Second
)

// One Stack is deployed; the others get its status and annotations, as if they had been restored from a backup. The first start of the
// controller has to leave them unchanged, too.
func TestRestartWithManyReadyStacksIsQuiet(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	const name = "quiet"
	app, template, err := environment.Provide(ctx, name, gitserver.Files{"Pulumi.yaml": "name: quiet\nruntime: yaml\n"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(environment.Client.Create(ctx, template.DeepCopy())).To(Succeed())
	waitCtx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	deployed, err := environment.WaitReady(waitCtx, app)
	g.Expect(err).NotTo(HaveOccurred())

	g.Expect(environment.main.stop()).To(Succeed())
	running := false
	defer func() {
		if !running {
			environment.main.start(environment.ctx)
		}
	}()
	for i := 1; i < readyStacks; i++ {
		stack := template.DeepCopy()
		stack.Name = fmt.Sprintf("%s-%d", name, i)
		stack.Spec.Stack = stack.Name
		stack.Finalizers = deployed.Finalizers
		stack.Annotations = deployed.Annotations
		g.Expect(environment.Client.Create(ctx, stack)).To(Succeed())
		deployed.Status.DeepCopyInto(&stack.Status)
		g.Expect(environment.Client.Status().Update(ctx, stack)).To(Succeed())
	}
	for attempt := range 3 {
		before := versions(ctx, g, name)
		starts := environment.main.started()
		start := time.Now()
		environment.main.start(environment.ctx)
		running = true
		g.Expect(environment.main.awaitStart(ctx, starts)).To(Succeed())
		_, metrics := environment.main.current()
		g.Eventually(func(g Gomega) {
			done, waiting := reconciles(ctx, g, metrics)
			g.Expect(done).To(BeNumerically(">=", readyStacks))
			g.Expect(waiting).To(BeZero())
		}).WithContext(ctx).WithTimeout(patience).WithPolling(campaign.PollInterval).Should(Succeed())
		took := time.Since(start)
		campaign.Wait(ctx, quietTime)
		writes := 0
		for object, version := range versions(ctx, g, name) {
			if before[object] != version {
				writes++
				t.Logf("%s was written", object)
			}
		}
		t.Logf("start %d: %d Stacks were reconciled within %.1f s, %d objects were written", attempt+1, readyStacks, took.Seconds(), writes)
		g.Expect(writes).To(BeZero())
		g.Expect(took).To(BeNumerically("<", time.Minute))
		if attempt < 2 {
			g.Expect(environment.main.stop()).To(Succeed())
			running = false
		}
	}
}

// versions returns the resource versions of all Stacks, Workspaces and Updates of a namespace.
func versions(ctx context.Context, g Gomega, namespace string) map[string]string {
	found := map[string]string{}
	for _, list := range []client.ObjectList{&pulumiv1.StackList{}, &autov1alpha1.WorkspaceList{}, &autov1alpha1.UpdateList{}} {
		g.Expect(environment.Client.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
		switch list := list.(type) {
		case *pulumiv1.StackList:
			for _, object := range list.Items {
				found["Stack "+object.Name] = object.ResourceVersion
			}
		case *autov1alpha1.WorkspaceList:
			for _, object := range list.Items {
				found["Workspace "+object.Name] = object.ResourceVersion
			}
		case *autov1alpha1.UpdateList:
			for _, object := range list.Items {
				found["Update "+object.Name] = object.ResourceVersion
			}
		}
	}
	return found
}

// reconciles returns how many reconciles of Stacks have ended since the start of the controller, and how many Stacks wait in the queue.
func reconciles(ctx context.Context, g Gomega, metrics string) (done, waiting float64) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, metrics, nil)
	g.Expect(err).NotTo(HaveOccurred())
	response, err := (&http.Client{Timeout: 10 * time.Second}).Do(request)
	g.Expect(err).NotTo(HaveOccurred())
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if !strings.Contains(line, `controller="stack"`) {
			continue
		}
		value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		g.Expect(err).NotTo(HaveOccurred())
		switch {
		case strings.HasPrefix(line, "controller_runtime_reconcile_total{") && strings.Contains(line, `result="error"`):
			g.Expect(value).To(BeZero(), "Stacks could not be reconciled")
		case strings.HasPrefix(line, "controller_runtime_reconcile_total{"):
			done += value
		case strings.HasPrefix(line, "workqueue_depth{"):
			waiting += value
		}
	}
	g.Expect(lines.Err()).NotTo(HaveOccurred())
	return done, waiting
}
