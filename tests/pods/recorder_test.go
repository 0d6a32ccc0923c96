package pods_test

import (
	"bufio"
	"context"
	"fmt"
	"maps"
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
)

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
