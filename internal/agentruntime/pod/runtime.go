// Package pod runs the agents of workspaces in pods. Each Workspace owns a StatefulSet with one pod, a headless Service, and a Secret with
// the agent's key pair.
//
// Ensure first applies these objects (objects.go, act.go) and takes care of the connection to the agent (connect.go). Then it observes the pod
// (observe.go), decides in a pure function what the status is and what to do (decide.go, explain.go), and acts on the decision (act.go). It
// watches pods and StatefulSets, so that it notices at once when a pod is lost, and reads again after a time what it cannot watch. Only this
// package replaces a pod, never the StatefulSet controller, because an operation may be running in it.
package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/credentials"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
	"github.com/stack-controller/stack-controller/internal/notify"
)

const (
	// DefaultClusterDomain is the DNS domain of most clusters.
	DefaultClusterDomain = "cluster.local"
	// ensureTimeout bounds all that Ensure asks of the API server and of an agent.
	ensureTimeout = 30 * time.Second
)

// Options configure a Runtime.
type Options struct {
	// Client reads from Cache and writes.
	Client ctrlclient.Client
	// APIReader reads Secrets and events from the API server; neither is cached.
	APIReader ctrlclient.Reader
	// Cache has the pods, StatefulSets and Services. It should be limited as CachedObjects says.
	Cache cache.Cache
	// Config is the identity of the controller. Its tokens authenticate the controller to agents.
	Config *rest.Config
	// AgentImage is the image with the agent as its entrypoint. Required.
	AgentImage string
	// AgentImagePullPolicy is the pull policy of that image; IfNotPresent when empty.
	AgentImagePullPolicy corev1.PullPolicy
	// AgentDelivery is how the agent gets into a pod; AutomaticDelivery when empty.
	AgentDelivery AgentDelivery
	// AgentArgs are more arguments for the agent, for example its limits.
	AgentArgs []string
	// DefaultServiceAccount is the service account of pods whose Workspace names none; "default" when empty.
	DefaultServiceAccount string
	// ClusterDomain is the DNS domain of the cluster; DefaultClusterDomain when empty.
	ClusterDomain string
	// Log receives a line for each change to a pod.
	Log logr.Logger
}

// Runtime runs agents in pods. Add it to the manager before the manager starts.
type Runtime struct {
	options     Options
	tokens      *credentials.Tokens
	events      *notify.Notifier
	connections connections
	rollout     *rollout
	probes      *probes
	volumes     *imageVolumes
	// groups are the agents of each namespace.
	groups client.Groups
	// active is true when this controller is the leader.
	active atomic.Bool

	mu       sync.Mutex
	trackers map[types.NamespacedName]*tracker
}

var (
	_ agentruntime.Runtime           = &Runtime{}
	_ manager.Runnable               = &Runtime{}
	_ manager.LeaderElectionRunnable = &Runtime{}
)

// New returns a Runtime, whose cache must not be started yet. It fails when an option is missing.
func New(ctx context.Context, options Options) (*Runtime, error) {
	switch {
	case options.AgentImage == "":
		return nil, errors.New("no image of the agent is set")
	case options.Client == nil || options.APIReader == nil || options.Cache == nil || options.Config == nil:
		return nil, errors.New("no way to the API server is set")
	}
	options.AgentImagePullPolicy = cmp.Or(options.AgentImagePullPolicy, corev1.PullIfNotPresent)
	options.ClusterDomain = cmp.Or(options.ClusterDomain, DefaultClusterDomain)
	options.AgentDelivery = cmp.Or(options.AgentDelivery, AutomaticDelivery)
	server, err := discovery.NewDiscoveryClientForConfig(options.Config)
	if err != nil {
		return nil, fmt.Errorf("create the client for the version of the API server: %w", err)
	}
	tokens, err := credentials.NewTokens(options.Config)
	if err != nil {
		return nil, err
	}
	events := notify.New()
	r := &Runtime{
		options: options, tokens: tokens, events: events, trackers: map[types.NamespacedName]*tracker{},
		probes: newProbes(events.Add), volumes: &imageVolumes{discovery: server},
	}
	r.rollout = newRollout(events.Add, r.hasWorkingAgent, r.logPause)
	return r, r.watch(ctx)
}

// NeedLeaderElection returns true: only the leader manages pods.
func (r *Runtime) NeedLeaderElection() bool { return true }

// Start delivers events until ctx is done, and then closes the connections. The pods stay as they are.
func (r *Runtime) Start(ctx context.Context) error {
	r.active.Store(true)
	r.events.Deliver(ctx)
	r.connections.closeAll()
	return nil
}

// Ensure creates or updates the objects of the Workspace if they differ, and returns the status of its pod. An object that the API server
// refuses is a status, not an error. An idle Workspace keeps its objects, and has no pod.
func (r *Runtime) Ensure(ctx context.Context, workspace *autov1alpha1.Workspace, idle bool) (agentruntime.Status, error) {
	r.active.Store(true)
	ctx, cancel := context.WithTimeout(ctx, ensureTimeout)
	defer cancel()
	t := r.tracker(workspace)
	defer t.mu.Unlock()
	o, err := r.applyObjects(ctx, t, workspace, idle)
	if err == nil {
		t.update(o)
		err = r.keepConnection(ctx, workspace, o)
	}
	if err == nil {
		err = r.observe(ctx, t, workspace, o)
	}
	if err == nil {
		t.rememberRefusal(o)
	}
	if refusal := refusalStatus(err); refusal != nil {
		return *refusal, nil
	}
	if err != nil {
		return agentruntime.Status{}, err
	}
	d := decide(o)
	if d.action == actionQueue {
		o.rollAsked, o.mayRoll = true, r.rollout.begin(keyOf(workspace))
		if err := r.observeAgent(ctx, t, workspace, o); err != nil {
			return agentruntime.Status{}, err
		}
		d = decide(o)
	}
	return r.act(ctx, t, workspace, o, d)
}

// Delete forgets the Workspace. The garbage collector removes its objects, because the Workspace owned them. Delete returns ErrEnding while
// there is a pod; an event follows when the pod is gone.
func (r *Runtime) Delete(ctx context.Context, key types.NamespacedName) error {
	r.mu.Lock()
	delete(r.trackers, key)
	r.mu.Unlock()
	r.rollout.forget(key)
	r.probes.drop(key)
	r.connections.drop(key, "")
	r.tokens.Drop(credentials.Audience(key.Namespace, key.Name))
	workspace := &autov1alpha1.Workspace{}
	workspace.Namespace, workspace.Name = key.Namespace, key.Name
	found, err := r.get(ctx, workspace, podspec.PodName(workspace), &corev1.Pod{})
	if found {
		err = fmt.Errorf("the pod of workspace %s is still there: %w", key, agentruntime.ErrEnding)
	}
	return err
}

// Events reports the workspaces whose pod or other objects changed.
func (r *Runtime) Events() <-chan event.GenericEvent {
	return r.events.Events()
}

// Agents returns how many of the Workspaces that this controller manages have a pod.
func (r *Runtime) Agents() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	pods := 0
	for _, t := range r.trackers {
		if t.hasPod.Load() {
			pods++
		}
	}
	return pods
}

// get reads an object of the Workspace from the cache.
func (r *Runtime) get(ctx context.Context, workspace *autov1alpha1.Workspace, name string, into ctrlclient.Object) (found bool, err error) {
	err = r.options.Client.Get(ctx, types.NamespacedName{Namespace: workspace.Namespace, Name: name}, into)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %T %s: %w", into, name, err)
	}
	return true, nil
}

func keyOf(workspace *autov1alpha1.Workspace) types.NamespacedName {
	return types.NamespacedName{Namespace: workspace.Namespace, Name: workspace.Name}
}
