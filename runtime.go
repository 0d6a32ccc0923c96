package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/runtime"
	"github.com/stack-controller/stack-controller/internal/runtime/pod"
	"github.com/stack-controller/stack-controller/internal/runtime/process"
)

// agentName is the file name of the workspace agent's executable.
const agentName = "agent"

// passedOn are the variables of the controller's environment that programs need as well: how to reach the world, and whom to
// trust there.
var passedOn = []string{
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR",
}

// agentRuntime is a runtime that the manager runs.
type agentRuntime interface {
	runtime.Runtime
	manager.Runnable
}

// newRuntime builds the runtime that --workspace-runtime names.
func newRuntime(ctx context.Context, mgr ctrl.Manager, o *options) (agentRuntime, error) {
	build := newProcessRuntime
	if o.workspace.runtime == runtimePod {
		build = newPodRuntime
	}
	agents, err := build(ctx, mgr, o)
	if err != nil {
		return nil, fmt.Errorf("prepare the workspace runtime: %w", err)
	}
	return agents, nil
}

func newPodRuntime(ctx context.Context, mgr ctrl.Manager, o *options) (agentRuntime, error) {
	return pod.New(ctx, pod.Options{
		Client:               mgr.GetClient(),
		Live:                 mgr.GetAPIReader(),
		Cache:                mgr.GetCache(),
		Config:               mgr.GetConfig(),
		AgentImage:           o.workspace.agentImage,
		AgentImagePullPolicy: corev1.PullPolicy(o.workspace.agentPullPolicy),
		AgentArgs:            agentArgs(o.artifacts),
		ClusterDomain:        o.workspace.clusterDomain,
		Log:                  ctrl.Log.WithName("runtime"),
	})
}

func newProcessRuntime(_ context.Context, mgr ctrl.Manager, o *options) (agentRuntime, error) {
	log := ctrl.Log.WithName("runtime")
	log.Info("warning: " + process.IdentityWarning)
	agentPath, err := o.workspace.agent()
	if err != nil {
		return nil, err
	}
	return process.New(process.Options{
		Dir:         filepath.Join(o.artifacts.storagePath, "workspaces"),
		AgentPath:   agentPath,
		PulumiPath:  o.workspace.pulumiPath,
		AgentArgs:   agentArgs(o.artifacts),
		Environ:     passedOn,
		IdleTimeout: o.workspace.idleTimeout,
		Exists:      workspaceExists(mgr.GetAPIReader()),
		Log:         log,
	})
}

// agent returns the path of the agent, by default beside the controller.
func (o workspaceOptions) agent() (string, error) {
	if o.agentPath != "" {
		return o.agentPath, nil
	}
	own, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the directory of the controller: %w", err)
	}
	return filepath.Join(filepath.Dir(own), agentName), nil
}

// agentArgs gives agents the limits of the store: what it takes, they take.
func agentArgs(o artifactOptions) []string {
	return []string{
		"--max-source-size=" + strconv.FormatInt(o.maxSize.Value(), 10),
		"--max-unpacked-size=" + strconv.FormatInt(o.maxUnpackedSize.Value(), 10),
		"--max-entries=" + strconv.Itoa(o.maxEntries),
	}
}

// workspaceExists tells whether a directory that is found at the start still has its Workspace. It asks the API server: a
// cache that lags would cost the state of an operation.
func workspaceExists(live client.Reader) func(context.Context, types.NamespacedName, types.UID) (bool, error) {
	return func(ctx context.Context, key types.NamespacedName, uid types.UID) (bool, error) {
		workspace := &metav1.PartialObjectMetadata{}
		workspace.SetGroupVersionKind(autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind))
		err := live.Get(ctx, key, workspace)
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("read the workspace %s: %w", key, err)
		}
		return workspace.UID == uid, nil
	}
}
