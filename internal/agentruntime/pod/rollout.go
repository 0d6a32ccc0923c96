package pod

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/fairqueue"
)

const (
	// maxRollingOfNamespace is how many pods of a namespace are replaced at the same time because the controller has another agent. When their
	// successors do not become ready, the other pods stay as they are.
	maxRollingOfNamespace = 5
	// rolloutTimeout is how long one replacement may hold up the others. After that, its place goes to another pod, or the namespace pauses.
	rolloutTimeout = 15 * time.Minute
	// maxFailedOfNamespace is how many replacements of a namespace may fail before it pauses.
	maxFailedOfNamespace = 3
)

// maxRolling is how many pods are replaced at the same time in all namespaces. No namespace takes the places of all others.
var maxRolling = fairqueue.Slots(maxRollingOfNamespace)

// ownReasons are the reasons of pods that do not become ready whatever the agent is.
var ownReasons = []string{
	autov1alpha1.DeletingReason, autov1alpha1.NamespaceTerminatingReason, autov1alpha1.NodeLostReason, autov1alpha1.PodTerminatingReason,
	autov1alpha1.QuotaExceededReason, autov1alpha1.ServiceAccountNotFoundReason, autov1alpha1.UnschedulableReason,
}

// rollout lets few pods be replaced at the same time. The others wait, without being reconciled, until it is their turn. A namespace pauses
// after some replacements failed, if the new agent has not become ready in any of its pods: then the agent is the likely cause, for example
// an image that cannot be pulled, and the pods that work stay. The first pod with the new agent that becomes ready ends the pause.
type rollout struct {
	turns   *fairqueue.Turns
	requeue func(types.NamespacedName)
	// works reports whether a pod of the namespace with the new agent was ready.
	works func(namespace string) bool
	// paused is called when a namespace pauses.
	paused func(namespace string)

	mu sync.Mutex
	// rolling are the workspaces that have a place. They lose it when the timer ends.
	rolling map[types.NamespacedName]*place
	// failed are the workspaces of each namespace whose replacement failed, parked those that wait because the namespace pauses.
	failed, parked map[string]map[types.NamespacedName]bool
}

// place is that of a pod that is being replaced.
type place struct {
	timer *time.Timer
	// fails is true when the pod was replaced and its successor is not ready, for a reason that may be the agent.
	fails bool
}

func newRollout(requeue func(types.NamespacedName), works func(namespace string) bool, paused func(namespace string)) *rollout {
	r := &rollout{requeue: requeue, works: works, paused: paused,
		rolling: map[types.NamespacedName]*place{}, failed: map[string]map[types.NamespacedName]bool{}, parked: map[string]map[types.NamespacedName]bool{}}
	r.turns = fairqueue.NewTurns(maxRolling, fairqueue.MayTake, func(key types.NamespacedName) {
		r.limit(key)
		requeue(key)
	})
	return r
}

// begin reports whether the workspace's pod may be replaced now. If not, the workspace is requeued when it may.
func (r *rollout) begin(key types.NamespacedName) bool {
	if r.park(key) {
		r.end(key)
		return false
	}
	mayRoll := r.turns.Ask(key, false) == 0
	if mayRoll {
		r.limit(key)
	}
	return mayRoll
}

// park reports whether the namespace pauses. The workspace is then requeued at the end of the pause.
func (r *rollout) park(key types.NamespacedName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.failed[key.Namespace]) < maxFailedOfNamespace {
		return false
	}
	add(r.parked, key)
	return true
}

// add adds the workspace to those of its namespace.
func add(to map[string]map[types.NamespacedName]bool, key types.NamespacedName) {
	if to[key.Namespace] == nil {
		to[key.Namespace] = map[types.NamespacedName]bool{}
	}
	to[key.Namespace][key] = true
}

// limit makes sure that the workspace loses its place after rolloutTimeout.
func (r *rollout) limit(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rolling[key] == nil {
		r.rolling[key] = &place{timer: time.AfterFunc(rolloutTimeout, func() { r.expire(key) })}
	}
}

// observe notes whether the replacement of the workspace's pod fails so far. It does nothing without a place.
func (r *rollout) observe(key types.NamespacedName, fails bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if place := r.rolling[key]; place != nil {
		place.fails = fails
	}
}

// expire ends a replacement that took too long.
func (r *rollout) expire(key types.NamespacedName) {
	works, pauses := r.works(key.Namespace), false
	r.mu.Lock()
	if place := r.rolling[key]; place != nil && place.fails && !works {
		add(r.failed, key)
		pauses = len(r.failed[key.Namespace]) == maxFailedOfNamespace
	}
	r.mu.Unlock()
	if pauses {
		r.paused(key.Namespace)
	}
	r.end(key)
}

// succeed notes that a pod of the namespace with the new agent is ready, which ends a pause.
func (r *rollout) succeed(namespace string) {
	r.mu.Lock()
	delete(r.failed, namespace)
	r.mu.Unlock()
	r.resume(namespace)
}

// resume requeues the workspaces that wait in the namespace.
func (r *rollout) resume(namespace string) {
	r.mu.Lock()
	parked := r.parked[namespace]
	delete(r.parked, namespace)
	r.mu.Unlock()
	for key := range parked {
		r.requeue(key)
	}
}

// forget gives up the place of a workspace that was deleted, and what is known of it. A namespace does not pause for it any longer.
func (r *rollout) forget(key types.NamespacedName) {
	r.end(key)
	r.mu.Lock()
	delete(r.parked[key.Namespace], key)
	delete(r.failed[key.Namespace], key)
	failed := len(r.failed[key.Namespace])
	if failed == 0 {
		delete(r.failed, key.Namespace)
	}
	r.mu.Unlock()
	if failed < maxFailedOfNamespace {
		r.resume(key.Namespace)
	}
}

// end gives up the place of the workspace, whose pod is no longer being replaced, or was not replaced after all. The place goes to the
// next workspace.
func (r *rollout) end(key types.NamespacedName) {
	r.mu.Lock()
	if place := r.rolling[key]; place != nil {
		place.timer.Stop()
	}
	delete(r.rolling, key)
	r.mu.Unlock()
	r.turns.Leave(key)
}

// observeRollout tells the rollout how the pod of the workspace is.
func (r *Runtime) observeRollout(t *tracker, key types.NamespacedName, o *observation, d decision) {
	replaced := o.pod == nil || o.pod.DeletionTimestamp == nil && o.podHasInputs() && !o.agentIsOutdated()
	if replaced && o.pod != nil && d.status.Ready {
		t.hadAgent.Store(true)
		r.rollout.succeed(key.Namespace)
	}
	r.rollout.observe(key, replaced && !d.status.Ready && !slices.Contains(ownReasons, d.status.Reason))
}

// hasWorkingAgent reports whether the agent of this controller was ready in a pod of the namespace.
func (r *Runtime) hasWorkingAgent(namespace string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, t := range r.trackers {
		if key.Namespace == namespace && t.hadAgent.Load() {
			return true
		}
	}
	return false
}

// logPause logs that the pods of a namespace keep the agent that they have.
func (r *Runtime) logPause(namespace string) {
	r.options.Log.Error(nil, "pods with another agent do not become ready, so the other pods of their namespace are not replaced", "namespace", namespace)
}
