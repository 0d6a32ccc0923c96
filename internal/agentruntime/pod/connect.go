package pod

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/credentials"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
)

// The agent accepts callers that have this right according to the API server, see the package credentials.
// +kubebuilder:rbac:groups=auto.pulumi.com,resources=workspaces/rpc,verbs=use

// closeGrace is how long a connection stays open after its pod is gone, so that a caller that watches an operation receives what the agent
// sent last.
const closeGrace = 30 * time.Second

// Connect returns a client for the agent in the pod of the Workspace. It connects to a pod that is not ready, or that is being deleted, as
// long as the container of the agent runs, so that operations in it are observed to their end. Otherwise the error is ErrNoAgent.
func (r *Runtime) Connect(ctx context.Context, workspace *autov1alpha1.Workspace) (*client.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, ensureTimeout)
	defer cancel()
	key := keyOf(workspace)
	pod, err := r.podOf(ctx, workspace)
	if err != nil {
		return nil, err
	}
	if pod == nil || !agentRuns(pod) && !r.probes.has(key, pod) {
		return nil, fmt.Errorf("connect to workspace %s: %w (its pod does not run)", key, agentruntime.ErrNoAgent)
	}
	if known := r.connections.get(key); known.reaches(pod) {
		return known.client, nil
	}
	certificate, err := r.certificate(ctx, workspace)
	if _, conflicts := errors.AsType[*conflictError](err); conflicts || apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("connect to workspace %s: %w (%w)", key, agentruntime.ErrNoAgent, err)
	}
	if err != nil {
		return nil, err
	}
	opened, err := r.dial(workspace, pod, certificate)
	if err != nil {
		return nil, err
	}
	return r.keep(ctx, workspace, opened), nil
}

// Wake is Connect: Ensure starts and ends pods.
func (r *Runtime) Wake(ctx context.Context, workspace *autov1alpha1.Workspace) (*client.Client, error) {
	return r.Connect(ctx, workspace)
}

// keepConnection looks for an agent that the kubelet has not reported yet, and makes sure that the connection to an agent that runs is the one
// to use. The observation has the results.
func (r *Runtime) keepConnection(ctx context.Context, workspace *autov1alpha1.Workspace, o *observation) (err error) {
	if o.answered = r.foundAgent(workspace, o); o.ownsRunningAgent() {
		o.renewing, err = r.renewConnection(ctx, workspace, o)
	}
	return err
}

// renewConnection opens a connection to the agent with the certificate that was just read, unless there is one. When the Secret was created
// again, the old connection stays in use until the kubelet has given the new key to the agent. pending reports whether that is still to
// come.
func (r *Runtime) renewConnection(ctx context.Context, workspace *autov1alpha1.Workspace, o *observation) (pending bool, err error) {
	known := r.connections.get(keyOf(workspace))
	reached := known.reaches(o.pod)
	if reached && known.certificate == podspec.ShortHash(o.certificate) {
		return false, nil
	}
	opened, err := r.dial(workspace, o.pod, o.certificate)
	if err != nil {
		return false, err
	}
	if reached && !opened.answers(ctx) {
		return true, nil
	}
	r.keep(ctx, workspace, opened)
	return false, nil
}

// answers reports whether the agent answers, and closes the connection if it does not.
func (c connection) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err := c.client.GetInfo(ctx)
	if err != nil {
		closeLater(c.client, 0)
	}
	return err == nil
}

// foundAgent reports whether a probe found the agent before the kubelet reported that its container runs. It starts the probe if the pod
// has the inputs that the user wants and is not being deleted.
func (r *Runtime) foundAgent(workspace *autov1alpha1.Workspace, o *observation) bool {
	switch {
	case o.pod == nil || !o.owned():
		return false
	case !o.podHasInputs() || o.pod.DeletionTimestamp != nil:
		return r.probes.has(keyOf(workspace), o.pod)
	}
	// The probe still runs when the caller has changed the Workspace, so it gets a copy.
	whose, pod, certificate := &autov1alpha1.Workspace{}, o.pod, o.certificate
	whose.Namespace, whose.Name, whose.UID = workspace.Namespace, workspace.Name, workspace.UID
	return r.probes.answered(keyOf(whose), pod, func(ctx context.Context) bool { return r.connectFirst(ctx, whose, pod, certificate) })
}

// connectFirst reports whether the agent in a pod that has just started answers, and keeps the connection if it does.
func (r *Runtime) connectFirst(ctx context.Context, workspace *autov1alpha1.Workspace, pod *corev1.Pod, certificate []byte) bool {
	opened, err := r.dial(workspace, pod, certificate)
	if err != nil || !opened.answers(ctx) {
		return false
	}
	r.keep(ctx, workspace, opened)
	return true
}

// keep shares a new connection with all callers of the agent, and returns the client to use. If the pod was deleted meanwhile, deleted may
// have run before the connection was kept; then keep drops the connection, and the caller may still use it for closeGrace.
func (r *Runtime) keep(ctx context.Context, workspace *autov1alpha1.Workspace, opened connection) *client.Client {
	key := keyOf(workspace)
	kept := r.connections.put(key, opened)
	// The cache forgets a pod before deleted is called for it.
	if pod, err := r.getPod(ctx, workspace); err == nil && (pod == nil || pod.UID != opened.pod) {
		r.connections.drop(key, opened.pod)
	}
	return kept
}

// dial returns a connection to the agent in the pod that accepts only this certificate. It connects when it is first used.
func (r *Runtime) dial(workspace *autov1alpha1.Workspace, pod *corev1.Pod, certificate []byte) (connection, error) {
	transport, err := credentials.Pinned(certificate)
	if err != nil {
		return connection{}, err
	}
	opened := connection{workspace: workspace.UID, pod: pod.UID, address: addressOf(pod), certificate: podspec.ShortHash(certificate)}
	audience := credentials.Audience(workspace.Namespace, workspace.Name)
	opened.client, err = client.New(opened.address, client.Options{
		TransportCredentials: transport,
		PerRPCCredentials:    r.tokens.For(audience),
		Rejected:             func() { r.tokens.Drop(audience) },
		Group:                r.groups.Of(workspace.Namespace),
	})
	return opened, err
}

// addressOf returns the address at which the agent in the pod listens.
func addressOf(pod *corev1.Pod) string {
	return net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(podspec.Port))
}

// podOf returns the pod of the Workspace, or nil if there is none. A pod of that name that belongs to an earlier Workspace, or to no
// Workspace, does not count.
func (r *Runtime) podOf(ctx context.Context, workspace *autov1alpha1.Workspace) (*corev1.Pod, error) {
	pod, err := r.getPod(ctx, workspace)
	if err != nil || pod == nil {
		return nil, err
	}
	if known := r.connections.get(keyOf(workspace)); known.workspace == workspace.UID && known.pod == pod.UID {
		return pod, nil
	}
	set := &appsv1.StatefulSet{}
	found, err := r.get(ctx, workspace, podspec.ObjectName(workspace), set)
	if err != nil || !found || !metav1.IsControlledBy(pod, set) || !metav1.IsControlledBy(set, workspace) {
		return nil, err
	}
	return pod, nil
}

// connection is a connection to the agent in a pod.
type connection struct {
	// workspace is the UID of the Workspace that the pod belongs to, pod the UID of the pod.
	workspace, pod types.UID
	// address contains the IP address of the pod, which changes when its node restarts.
	address string
	// certificate is the hash of the certificate that the agent must have.
	certificate string
	client      *client.Client
}

// reaches reports whether this is a connection to the pod.
func (c connection) reaches(pod *corev1.Pod) bool {
	return c.client != nil && c.pod == pod.UID && c.address == addressOf(pod)
}

// connections are the connections to agents, at most one for each workspace. All callers share it.
type connections struct {
	mu   sync.Mutex
	open map[types.NamespacedName]connection
}

// get returns the connection to the agent of the workspace; it is empty if there is none.
func (c *connections) get(key types.NamespacedName) connection {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open[key]
}

// put replaces the connection with a new one, and returns the client to use: another caller may have opened the same connection earlier.
func (c *connections) put(key types.NamespacedName, opened connection) *client.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.open[key]
	if known.pod == opened.pod && known.address == opened.address && known.certificate == opened.certificate {
		closeLater(opened.client, 0)
		return known.client
	}
	closeLater(known.client, closeGrace)
	if c.open == nil {
		c.open = map[types.NamespacedName]connection{}
	}
	c.open[key] = opened
	return opened.client
}

// drop removes the connection to the pod and closes it after closeGrace. With an empty UID, it does so for any pod of the workspace.
func (c *connections) drop(key types.NamespacedName, pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.open[key]; pod == "" || known.pod == pod {
		delete(c.open, key)
		closeLater(known.client, closeGrace)
	}
}

// closeAll ends all connections.
func (c *connections) closeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, known := range c.open {
		closeLater(known.client, 0)
	}
	clear(c.open)
}

// closeLater closes the connection, if it is not nil, after the given time. It ignores the error: nothing can be done about it, and nothing
// depends on it.
func closeLater(connection *client.Client, after time.Duration) {
	switch {
	case connection == nil:
	case after == 0:
		_ = connection.Close()
	default:
		time.AfterFunc(after, func() { _ = connection.Close() })
	}
}
