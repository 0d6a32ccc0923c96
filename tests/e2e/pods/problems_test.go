package pods_test

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/cluster"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
)

const (
	// quietTime is how long a problem is left as it is, to see that it does not cause writes again and again.
	quietTime = 30 * time.Second
	// maxWrites is how often an object may be written in that time: the controller retries, and the kubelet and the scheduler report
	// changes.
	maxWrites = 8
	// healingPatience bounds the time between removing the cause and the end of the problem. The kubelet has waits of its own.
	healingPatience = 6 * time.Minute
)

// problem is a reason why the pod of a workspace does not exist, or is not ready.
type problem struct {
	// provoke changes the Stack before it is created, or its namespace, which exists already.
	provoke func(ctx context.Context, g *WithT, stack *pulumiv1.Stack)
	// reason is the reason of the Workspace, and says lists what its message has to contain.
	reason string
	says   []string
	// stalled reports whether only an edit can solve the problem.
	stalled bool
	// heal removes the cause.
	heal func(ctx context.Context, g *WithT, key client.ObjectKey)
	// then, if not nil, checks the pod after the Stack is ready.
	then func(g *WithT, pod *corev1.Pod)
}

// play follows a problem from its beginning to its end, in a namespace of its own.
type fixture struct {
	problem
	app      *localsystem.App
	recorder *recorder
	// begun, shown and healed are the times when the Stack was created, when it showed the problem and when the cause was removed.
	begun, shown, healed time.Time
}

// playProblems provokes the problems, each in a namespace of its name. It expects for each that the Workspace and the Stack show the
// problem, that objects are not written again and again, and that the problem ends with its cause.
func playProblems(t *testing.T, problems map[string]problem) {
	g := NewWithT(t)
	var plays []*fixture
	for _, name := range slices.Sorted(maps.Keys(problems)) {
		plays = append(plays, begin(t, g, name, problems[name]))
	}
	for _, p := range plays {
		t.Run(p.app.Name+" is shown", p.expectShown)
	}
	expectQuiet(t, g, plays)
	for _, p := range plays {
		p.end(t, g)
	}
	for _, p := range plays {
		t.Run(p.app.Name+" heals", p.expectRecovered)
	}
}

// begin creates a Stack with the problem.
func begin(t *testing.T, g *WithT, name string, what problem) *fixture {
	removeNamespaceAtEnd(t, g, name)
	checkStatuses(t, name)
	p := &fixture{problem: what, recorder: record(t, g, name), begun: time.Now()}
	var err error
	p.app, err = system.Deploy(t.Context(), name, programWith(name, "one"), func(stack *pulumiv1.Stack) { what.provoke(t.Context(), g, stack) })
	g.Expect(err).NotTo(HaveOccurred())
	return p
}

// expectShown waits until the Workspace shows the problem, and the Stack shows it in the same words.
func (p *fixture) expectShown(t *testing.T) {
	g := NewWithT(t)
	var workspace *autov1alpha1.Workspace
	eventually(t.Context(), g, func(g Gomega) {
		workspace = workspaceOf(t.Context(), g, p.app)
		p.expectProblem(g, workspace)
	})
	stack := awaitStack(t.Context(), g, p.app.Key(), func(g Gomega, stack *pulumiv1.Stack) {
		ready := conditions.Get(stack, meta.ReadyCondition)
		g.Expect(ready).To(HaveField("Reason", p.stackReason()))
		g.Expect(ready).To(HaveField("Status", BeEquivalentTo("False")))
		g.Expect(ready.Message).To(HavePrefix(fmt.Sprintf("workspace %q is not ready (%s): ", p.app.Name, p.reason)))
		for _, words := range p.says {
			g.Expect(ready.Message).To(ContainSubstring(words))
		}
		g.Expect(conditions.IsStalled(stack)).To(Equal(p.stalled))
		g.Expect(conditions.IsReconciling(stack)).To(Equal(!p.stalled))
	})
	p.shown = time.Now()
	t.Logf("%s: shown after %s, %s: %s", p.app.Name, p.shown.Sub(p.begun).Round(100*time.Millisecond), p.stackReason(), conditions.GetMessage(stack, meta.ReadyCondition))
}

// expectProblem expects that the Workspace shows the problem.
func (p *fixture) expectProblem(g Gomega, workspace *autov1alpha1.Workspace) {
	ready := conditions.Get(workspace, autov1alpha1.WorkspaceReady)
	g.Expect(ready).To(HaveField("Reason", p.reason))
	g.Expect(ready.Status).To(BeEquivalentTo("False"))
	for _, words := range p.says {
		g.Expect(ready.Message).To(ContainSubstring(words))
	}
	g.Expect(conditions.IsStalled(workspace)).To(Equal(p.stalled))
}

func (p *fixture) stackReason() string {
	if p.reason == autov1alpha1.IncompatibleConfigurationReason {
		return pulumiv1.PulumiVersionTooLowReason
	}
	if p.stalled {
		return pulumiv1.WorkspaceFailedReason
	}
	return pulumiv1.WorkspaceNotReadyReason
}

// end removes the cause of the problem.
func (p *fixture) end(t *testing.T, g *WithT) {
	p.healed = time.Now()
	p.heal(t.Context(), g, p.app.Key())
}

// expectRecovered waits until the Stack is ready, and expects one event for the problem.
func (p *fixture) expectRecovered(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(t.Context(), healingPatience)
	defer cancel()
	_, err := system.WaitReady(ctx, p.app)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() time.Time { return p.recorder.readySince(p.healed) }).WithContext(ctx).ShouldNot(BeZero())
	t.Logf("%s: healed in %s; the workspace was %s", p.app.Name, p.recorder.readySince(p.healed).Sub(p.healed).Round(100*time.Millisecond),
		strings.Join(p.recorder.reasons(autov1alpha1.WorkspaceKind, p.begun), ", "))
	g.Expect(p.recorder.when(autov1alpha1.WorkspaceKind, "True", p.begun)).To(BeTemporally(">", p.healed), "ready despite the problem")
	ofStack, ofWorkspace := HavePrefix("Stack "+p.stackReason()+" x1: "), HavePrefix("Workspace "+p.reason+" x1: ")
	// A busy kubelet may describe a problem in two ways. There is one event for each of them.
	found := warnings(ctx, g, p.app.Namespace, p.stackReason(), p.reason)
	g.Expect(found).To(And(ContainElements(ofStack, ofWorkspace), HaveEach(Or(ofStack, ofWorkspace))))
	g.Expect(len(found)).To(BeNumerically("<=", 4), "%q", found)
	if p.then != nil {
		p.then(g, podOf(ctx, g, p.app.Namespace, p.app.Name))
	}
}

// warnings returns the warning events about the Stack and the Workspace of a namespace that have one of the reasons. A busy machine may
// cause other warnings by itself: a volume, the delivery of a Secret to the kubelet, or the first answer of a new agent can take a while.
func warnings(ctx context.Context, g Gomega, namespace string, reasons ...string) (found []string) {
	list := &corev1.EventList{}
	g.Expect(system.Client.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
	for _, event := range list.Items {
		kind := event.InvolvedObject.Kind
		if event.Type == corev1.EventTypeWarning && slices.Contains(reasons, event.Reason) && (kind == pulumiv1.StackKind || kind == autov1alpha1.WorkspaceKind) {
			found = append(found, fmt.Sprintf("%s %s x%d: %s", kind, event.Reason, event.Count, event.Message))
		}
	}
	return found
}

// expectQuiet expects few writes and few reconciles while the problems last.
func expectQuiet(t *testing.T, g *WithT, plays []*fixture) {
	before := reconciles(t.Context(), g)
	begin := time.Now()
	for _, p := range plays {
		p.recorder.forget()
	}
	g.Consistently(func(g Gomega) {
		for _, p := range plays {
			for object, writes := range p.recorder.writes() {
				g.Expect(writes).To(BeNumerically("<=", maxWrites), "%s in namespace %s", object, p.app.Namespace)
			}
		}
	}).WithContext(t.Context()).WithTimeout(quietTime).WithPolling(time.Second).Should(Succeed())
	for _, p := range plays {
		t.Logf("%s: written in %s: %v", p.app.Name, quietTime, p.recorder.writes())
	}
	for controller, count := range reconciles(t.Context(), g) {
		rate := (count - before[controller]) / time.Since(begin).Seconds()
		t.Logf("reconciles of the controller of %s: %.1f/s, of %d problems and of other tests", controller, rate, len(plays))
		g.Expect(rate).To(BeNumerically("<", 50), controller)
	}
}

// programWith returns a project of that name with one output. The name makes sure that no other test uses the same pulumi stack.
func programWith(name, value string) gitserver.Files {
	return gitserver.Files{"Pulumi.yaml": "name: " + name + "\nruntime: yaml\noutputs:\n  value: " + value + "\n"}
}

// workspaceOf returns the Workspace of the app.
func workspaceOf(ctx context.Context, g Gomega, app *localsystem.App) *autov1alpha1.Workspace {
	workspace := &autov1alpha1.Workspace{}
	g.Expect(system.Client.Get(ctx, app.Key(), workspace)).To(Succeed())
	return workspace
}

// recorder records when the Stacks, Workspaces and StatefulSets of a namespace were written.
type recorder struct {
	mu sync.Mutex
	// counts has the number of writes by kind.
	counts map[string]int
	// ready has the changes of the condition Ready by kind, in order.
	ready map[string][]readiness
}

// readiness is a change of the condition Ready.
type readiness struct {
	at             time.Time
	status, reason string
}

// record starts a recorder that ends with the test. The namespace need not exist yet.
func record(t *testing.T, g *WithT, namespace string) *recorder {
	r := &recorder{counts: map[string]int{}, ready: map[string][]readiness{}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	for _, list := range []client.ObjectList{&pulumiv1.StackList{}, &autov1alpha1.WorkspaceList{}, &appsv1.StatefulSetList{}} {
		watcher, err := system.Client.Watch(ctx, list, client.InNamespace(namespace))
		g.Expect(err).NotTo(HaveOccurred())
		running.Go(func() { r.follow(ctx, watcher) })
	}
	return r
}

func (r *recorder) follow(ctx context.Context, watcher watch.Interface) {
	defer watcher.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case event, open := <-watcher.ResultChan():
			if !open {
				return
			}
			r.note(event.Object)
		}
	}
}

func (r *recorder) note(object any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kind := strings.TrimPrefix(fmt.Sprintf("%T", object), "*")
	kind = kind[strings.LastIndex(kind, ".")+1:]
	r.counts[kind]++
	getter, ok := object.(conditions.Getter)
	if !ok {
		return
	}
	ready, now := conditions.Get(getter, meta.ReadyCondition), readiness{at: time.Now()}
	if ready != nil {
		now.status, now.reason = string(ready.Status), ready.Reason
	}
	seen := r.ready[kind]
	if len(seen) == 0 || seen[len(seen)-1].status != now.status || seen[len(seen)-1].reason != now.reason {
		r.ready[kind] = append(seen, now)
	}
}

// forget starts to count from zero.
func (r *recorder) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.counts)
}

// writes returns the number of writes by kind.
func (r *recorder) writes() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.counts)
}

// readySince returns when the Stack became ready after that time, or zero if it did not.
func (r *recorder) readySince(since time.Time) time.Time {
	return r.when(pulumiv1.StackKind, "True", since)
}

// when returns when the condition Ready of the kind got the status after that time, or zero if it did not.
func (r *recorder) when(kind, status string, since time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ready := range r.ready[kind] {
		if ready.at.After(since) && ready.status == status {
			return ready.at
		}
	}
	return time.Time{}
}

// reasons returns the statuses and reasons of the kind's condition Ready after that time, in order.
func (r *recorder) reasons(kind string, since time.Time) (reasons []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ready := range r.ready[kind] {
		if ready.at.After(since) {
			reasons = append(reasons, ready.status+" "+ready.reason)
		}
	}
	return reasons
}

// reconciles returns the number of reconciles by controller, from the metrics of stack-controller.
func reconciles(ctx context.Context, g *WithT) map[string]float64 {
	pods := &corev1.PodList{}
	g.Expect(system.Client.List(ctx, pods, client.InNamespace(cluster.FluxNamespace), client.MatchingLabels{"app": "stack-controller"})).To(Succeed())
	g.Expect(pods.Items).NotTo(BeEmpty())
	metrics, err := kubectl(ctx, "get", "--raw=/api/v1/namespaces/"+cluster.FluxNamespace+"/pods/"+pods.Items[0].Name+":8080/proxy/metrics")
	g.Expect(err).NotTo(HaveOccurred())
	counts := map[string]float64{}
	lines := bufio.NewScanner(strings.NewReader(metrics))
	for lines.Scan() {
		labels, found := strings.CutPrefix(lines.Text(), "controller_runtime_reconcile_total{controller=\"")
		if !found {
			continue
		}
		controller, _, _ := strings.Cut(labels, "\"")
		count, err := strconv.ParseFloat(labels[strings.LastIndex(labels, " ")+1:], 64)
		g.Expect(err).NotTo(HaveOccurred())
		counts[controller] += count
	}
	g.Expect(counts).NotTo(BeEmpty())
	return counts
}
