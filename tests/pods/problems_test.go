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
	"github.com/stack-controller/stack-controller/tests/cluster"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage"
)

const (
	// quietTime is for how long a problem is left alone to see that it is not written about again and again.
	quietTime = 30 * time.Second
	// maxWrites is how often an object may be written in that time: attempts are made, and kubelet and scheduler tell news.
	maxWrites = 8
	// healingPatience bounds the time from the end of a cause to that of the problem. The kubelet has waits of its own.
	healingPatience = 6 * time.Minute
)

// problem is why the pod of a workspace is not there, or not ready.
type problem struct {
	// provoke changes the Stack, which is about to be created, and its namespace, which is there already.
	provoke func(ctx context.Context, g *WithT, stack *pulumiv1.Stack)
	// reason is that of the Workspace, and says is what its message has to contain.
	reason string
	says   []string
	// stalled says that only an edit can help.
	stalled bool
	// heal takes the cause away.
	heal func(ctx context.Context, g *WithT, key client.ObjectKey)
	// then, if there is one, looks at the pod of the Stack that is ready.
	then func(g *WithT, pod *corev1.Pod)
}

// play is a problem from its begin to its end, in a namespace of its own.
type play struct {
	problem
	app      *stage.App
	recorder *recorder
	// begun, shown and healed are when the Stack was created, when it showed the problem and when the cause was taken away.
	begun, shown, healed time.Time
}

// playProblems provokes the problems, each in a namespace of its name, and expects of each of them that Workspace and Stack say
// what it is, that nobody writes about it over and over again, and that it ends with its cause.
func playProblems(t *testing.T, problems map[string]problem) {
	g := NewWithT(t)
	var plays []*play
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
		t.Run(p.app.Name+" heals", p.expectHealed)
	}
}

// begin creates a Stack with the problem.
func begin(t *testing.T, g *WithT, name string, what problem) *play {
	removeNamespaceAtEnd(t, g, name)
	checkStatuses(t, name)
	p := &play{problem: what, recorder: record(t, g, name), begun: time.Now()}
	var err error
	p.app, err = system.Deploy(t.Context(), name, programWith(name, "one"), func(stack *pulumiv1.Stack) { what.provoke(t.Context(), g, stack) })
	g.Expect(err).NotTo(HaveOccurred())
	return p
}

// expectShown waits until the problem is shown by the Workspace, and by the Stack in the same words.
func (p *play) expectShown(t *testing.T) {
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

// expectProblem expects the Workspace to say what the problem is.
func (p *play) expectProblem(g Gomega, workspace *autov1alpha1.Workspace) {
	ready := conditions.Get(workspace, autov1alpha1.WorkspaceReady)
	g.Expect(ready).To(HaveField("Reason", p.reason))
	g.Expect(ready.Status).To(BeEquivalentTo("False"))
	for _, words := range p.says {
		g.Expect(ready.Message).To(ContainSubstring(words))
	}
	g.Expect(conditions.IsStalled(workspace)).To(Equal(p.stalled))
}

func (p *play) stackReason() string {
	if p.reason == autov1alpha1.IncompatibleConfigurationReason {
		return pulumiv1.PulumiVersionTooLowReason
	}
	if p.stalled {
		return pulumiv1.WorkspaceFailedReason
	}
	return pulumiv1.WorkspaceNotReadyReason
}

// end takes the cause of the problem away.
func (p *play) end(t *testing.T, g *WithT) {
	p.healed = time.Now()
	p.heal(t.Context(), g, p.app.Key())
}

// expectHealed waits until the Stack is ready, and expects that the problem was told once.
func (p *play) expectHealed(t *testing.T) {
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
	// A busy kubelet may have two wordings for a problem, each of which is told once.
	found := warnings(ctx, g, p.app.Namespace, p.stackReason(), p.reason)
	g.Expect(found).To(And(ContainElements(ofStack, ofWorkspace), HaveEach(Or(ofStack, ofWorkspace))))
	g.Expect(len(found)).To(BeNumerically("<=", 4), "%q", found)
	if p.then != nil {
		p.then(g, podOf(ctx, g, p.app.Namespace, p.app.Name))
	}
}

// warnings are the events of that type about the Stack and the Workspace of a namespace that have one of the reasons. A busy machine may cause
// others by itself: it needs a while for a volume, for a Secret to come to the kubelet, or for an agent that has just started to answer.
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

// expectQuiet expects that few writes and few reconciles happen while the problems last.
func expectQuiet(t *testing.T, g *WithT, plays []*play) {
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

// programWith is a project of that name, so that its pulumi stack is nobody else's, with one output.
func programWith(name, value string) gitserver.Files {
	return gitserver.Files{"Pulumi.yaml": "name: " + name + "\nruntime: yaml\noutputs:\n  value: " + value + "\n"}
}

// workspaceOf returns the Workspace of the app.
func workspaceOf(ctx context.Context, g Gomega, app *stage.App) *autov1alpha1.Workspace {
	workspace := &autov1alpha1.Workspace{}
	g.Expect(system.Client.Get(ctx, app.Key(), workspace)).To(Succeed())
	return workspace
}

// recorder notes when the Stacks, Workspaces and StatefulSets of a namespace were written.
type recorder struct {
	mu sync.Mutex
	// counts has the number of writes by object.
	counts map[string]int
	// ready has how Ready was written, by kind, in order.
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

// writes are the numbers of writes by kind.
func (r *recorder) writes() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.counts)
}

// readySince is when the Stack became ready after that time; zero when it did not.
func (r *recorder) readySince(since time.Time) time.Time {
	return r.when(pulumiv1.StackKind, "True", since)
}

// when is when Ready of the kind got the status after that time; zero when it did not.
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

// reasons are those of the kind's Ready, in order, after that time.
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

// reconciles are the numbers of reconciles by controller, as the metrics of stack-controller have them.
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
