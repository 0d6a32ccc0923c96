package pod

import (
	"context"
	"fmt"
	"net"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/runtime"
	"github.com/stack-controller/stack-controller/internal/runtime/pod/credentials"
	"github.com/stack-controller/stack-controller/internal/runtime/pod/shape"
)

// The agent lets in whom the API server says may do this, see the package credentials.
// +kubebuilder:rbac:groups=auto.pulumi.com,resources=workspaces/rpc,verbs=use

// Connect returns a client for the agent in the pod of the Workspace. A pod that is not ready, or that is ending, is reached as
// long as its container runs: operations in it are observed to their end. Otherwise the error is ErrNoAgent.
func (r *Runtime) Connect(ctx context.Context, workspace *autov1alpha1.Workspace) (*client.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, ensureTimeout)
	defer cancel()
	key := keyOf(workspace)
	pod, err := r.podOf(ctx, workspace)
	if err != nil {
		return nil, err
	}
	if pod == nil || !agentRuns(pod) {
		return nil, fmt.Errorf("connect to workspace %s: %w (its pod does not run)", key, runtime.ErrNoAgent)
	}
	if known := r.connections.get(key, pod.UID, addressOf(pod)); known != nil {
		return known, nil
	}
	certificate, err := r.certificate(ctx, workspace)
	if apierrors.IsNotFound(err) || asConflict(err) != nil {
		return nil, fmt.Errorf("connect to workspace %s: %w (%w)", key, runtime.ErrNoAgent, err)
	}
	if err != nil {
		return nil, err
	}
	return r.open(workspace, pod, certificate)
}

// addressOf is where the agent in the pod listens.
func addressOf(pod *corev1.Pod) string {
	return net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(shape.Port))
}

// open makes the connection to the agent in the pod that everybody shares.
func (r *Runtime) open(workspace *autov1alpha1.Workspace, pod *corev1.Pod, certificate []byte) (*client.Client, error) {
	opened, err := r.dial(workspace, addressOf(pod), certificate)
	if err != nil {
		return nil, err
	}
	return r.connections.put(keyOf(workspace), connection{
		workspace: workspace.UID, pod: pod.UID, address: addressOf(pod), certificate: fingerprint(certificate), client: opened,
	}), nil
}

// dial makes a connection to the agent with the certificate. It connects when it is used.
func (r *Runtime) dial(workspace *autov1alpha1.Workspace, address string, certificate []byte) (*client.Client, error) {
	transport, err := credentials.Pinned(certificate)
	if err != nil {
		return nil, err
	}
	return client.New(address, client.Options{
		TransportCredentials: transport,
		PerRPCCredentials:    r.tokens.For(credentials.Audience(workspace.Namespace, workspace.Name)),
	})
}

// prepare sees to a connection to the agent in the pod while its certificate is at hand. When the Secret was made anew, the
// earlier connection is good until the kubelet has handed the new key to the agent. It tells whether that is still to come.
func (r *Runtime) prepare(ctx context.Context, workspace *autov1alpha1.Workspace, pod *corev1.Pod, certificate []byte) (pending bool, err error) {
	key := keyOf(workspace)
	if r.connections.get(key, pod.UID, addressOf(pod)) == nil {
		_, err := r.open(workspace, pod, certificate)
		return false, err
	}
	if r.connections.goesBy(key, pod.UID, fingerprint(certificate)) {
		return false, nil
	}
	attempt, err := r.dial(workspace, addressOf(pod), certificate)
	if err != nil {
		return false, err
	}
	defer closeLater(attempt, 0)
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if _, err := attempt.GetInfo(ctx); err != nil {
		return true, nil
	}
	_, err = r.open(workspace, pod, certificate)
	return false, err
}

// podOf returns the pod of the Workspace, nil when there is none. A pod of the same name that belongs to an earlier
// Workspace, or to nobody, is not it.
func (r *Runtime) podOf(ctx context.Context, workspace *autov1alpha1.Workspace) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	found, err := r.get(ctx, workspace, shape.PodName(workspace), pod)
	if err != nil || !found {
		return nil, err
	}
	if r.connections.knows(keyOf(workspace), workspace.UID, pod.UID) {
		return pod, nil
	}
	set := &appsv1.StatefulSet{}
	found, err = r.get(ctx, workspace, shape.ObjectName(workspace), set)
	if err != nil || !found || !metav1.IsControlledBy(pod, set) || !metav1.IsControlledBy(set, workspace) {
		return nil, err
	}
	return pod, nil
}

// get reads an object from the cache.
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
