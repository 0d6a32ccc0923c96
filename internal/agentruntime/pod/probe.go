package pod

import (
	"context"
	"net"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/fairqueue"
)

const (
	// maxProbes is how many agents are probed at the same time; at most half of them in one namespace. The others are found by the probes of
	// the kubelet.
	maxProbes = 64
	// probeTime is for how long an agent is probed once its pod has an address, every probeInterval. Each attempt takes at most probeTimeout.
	probeTime     = 10 * time.Second
	probeInterval = 50 * time.Millisecond
	probeTimeout  = 200 * time.Millisecond
)

// probes find agents that have just started. The kubelet notices up to a second late that a container runs, and reports up to another
// second later that it is ready. The address of the pod is known earlier.
type probes struct {
	// found is called with each workspace whose agent was found.
	found func(types.NamespacedName)

	mu sync.Mutex
	// probed are the pods whose agents are probed, or were found, keyed by workspace.
	probed map[types.NamespacedName]*probed
	// places are the places of the agents that are probed now, keyed by namespace and UID of the pod. A pod that gets no place does not wait
	// for one.
	places *fairqueue.Turns
}

func newProbes(found func(types.NamespacedName)) *probes {
	return &probes{
		found: found, probed: map[types.NamespacedName]*probed{},
		places: fairqueue.NewTurns(maxProbes, fairqueue.MayTake, func(types.NamespacedName) {}),
	}
}

// probed is the state of the probe of one pod.
type probed struct {
	pod      types.UID
	answered bool
}

// answered reports whether a probe found the agent in the pod and the kubelet has not reported that the agent is ready or has ended. If the
// pod was not probed yet, answered starts a probe, which calls answers to find out whether the agent answers.
func (p *probes) answered(key types.NamespacedName, pod *corev1.Pod, answers func(ctx context.Context) bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.probed[key]
	if known != nil && known.pod == pod.UID {
		// Once the kubelet has reported on the agent, only its reports count.
		known.answered = known.answered && isStarting(pod)
		return known.answered
	}
	if pod.Status.PodIP == "" {
		return false
	}
	begun := &probed{pod: pod.UID}
	if isStarting(pod) {
		place := types.NamespacedName{Namespace: key.Namespace, Name: string(pod.UID)}
		if p.places.Ask(place, false) > 0 {
			p.places.Leave(place)
			return false
		}
		go p.run(key, place, begun, addressOf(pod), answers)
	}
	p.probed[key] = begun
	return false
}

// run probes an agent until it answers, for at most probeTime.
func (p *probes) run(key, place types.NamespacedName, begun *probed, address string, answers func(ctx context.Context) bool) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	found := probe(ctx, address, answers)
	p.places.Leave(place)
	p.mu.Lock()
	begun.answered = found
	p.mu.Unlock()
	if found {
		p.found(key)
	}
}

// has reports the same as answered, and starts no probe.
func (p *probes) has(key types.NamespacedName, pod *corev1.Pod) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.probed[key]
	return known != nil && known.pod == pod.UID && known.answered && isStarting(pod)
}

// drop forgets the pod of the workspace.
func (p *probes) drop(key types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.probed, key)
}

// isStarting reports whether the agent of the pod may have started, or may be about to start, and the kubelet has not reported that it is
// ready or has ended.
func isStarting(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodPending && pod.Status.Phase != corev1.PodRunning {
		return false
	}
	container := containerOf(pod, autov1alpha1.PulumiContainerName)
	return container == nil || container.RestartCount == 0 && container.State.Terminated == nil && !container.Ready
}

// probe waits until something listens at the address and the agent answers.
func probe(ctx context.Context, address string, answers func(ctx context.Context) bool) bool {
	dialer := net.Dialer{Timeout: probeTimeout}
	err := wait.PollUntilContextCancel(ctx, probeInterval, true, func(ctx context.Context) (bool, error) {
		connection, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return false, nil // nothing listens yet
		}
		_ = connection.Close()
		return answers(ctx), nil
	})
	return err == nil
}
