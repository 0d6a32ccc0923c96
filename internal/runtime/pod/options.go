// Package pod runs the agents of workspaces in pods: a StatefulSet with one pod, a headless Service and a Secret with the
// agent's key pair for each Workspace, which owns them.
//
// What is observed of them becomes a decision in a pure function (decide): how the Workspace stands, in words, and what to
// do about it. Pods and StatefulSets are watched, so that a pod that dies is noticed at once; what nothing tells about is
// looked at again after a time. A pod is replaced by this package alone, never by the StatefulSet controller, because an
// operation may be running in it.
package pod

import (
	"errors"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// DefaultClusterDomain is the DNS domain of most clusters.
const DefaultClusterDomain = "cluster.local"

// Options configure a Runtime.
type Options struct {
	// Client reads from Cache and writes.
	Client client.Client
	// Live reads Secrets and events from the API server; neither is cached.
	Live client.Reader
	// Cache has the pods, StatefulSets and Services. It should be limited as CachedObjects says.
	Cache cache.Cache
	// Config is who the controller is, for the tokens with which it calls agents.
	Config *rest.Config
	// AgentImage is the image with the agent as its entrypoint. Required.
	AgentImage string
	// AgentImagePullPolicy of that image; IfNotPresent when empty.
	AgentImagePullPolicy corev1.PullPolicy
	// AgentArgs are more arguments for the agent, for example its limits.
	AgentArgs []string
	// ClusterDomain is the DNS domain of the cluster; DefaultClusterDomain when empty.
	ClusterDomain string
	// Log receives what is done to pods.
	Log logr.Logger
}

// complete fills in defaults and tells what is missing.
func (o Options) complete() (Options, error) {
	if o.AgentImagePullPolicy == "" {
		o.AgentImagePullPolicy = corev1.PullIfNotPresent
	}
	if o.ClusterDomain == "" {
		o.ClusterDomain = DefaultClusterDomain
	}
	switch {
	case o.AgentImage == "":
		return o, errors.New("no image of the agent is set")
	case o.Client == nil || o.Live == nil || o.Cache == nil || o.Config == nil:
		return o, errors.New("no way to the API server is set")
	}
	return o, nil
}
