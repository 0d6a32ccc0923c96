package pod

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
)

// AgentDelivery is how the agent gets into a pod.
type AgentDelivery string

const (
	// ByImageVolume mounts the image with the agent as a volume. Every node needs Kubernetes 1.35 and a container runtime with image volumes.
	ByImageVolume AgentDelivery = "true"
	// ByInitContainer copies the agent with an init container, which works everywhere and takes about a second.
	ByInitContainer AgentDelivery = "false"
	// AutomaticDelivery mounts the image if the API server has Kubernetes 1.36 or later, where image volumes are always on. A pod whose container
	// cannot be created so gets an init container instead: its node may be older, or its container runtime may have no image volumes. So do pods
	// of its namespace that are new within the next hour.
	AutomaticDelivery AgentDelivery = "auto"
)

const (
	// refusalTime is for how long new pods of a namespace get an init container after an image volume was refused there.
	refusalTime = time.Hour
	// versionInterval is how often the API server is asked for its version, which an upgrade changes.
	versionInterval = time.Hour
)

// imageVolumesAlways is the version of the API server from which on image volumes cannot be turned off.
var imageVolumesAlways = version.MustParseGeneric("1.36")

// imageVolumes finds out whether the cluster has image volumes.
type imageVolumes struct {
	discovery discovery.ServerVersionInterface

	mu sync.Mutex
	// refusedAt has, for each namespace, when a pod could not be started so within the last hour. A tenant can make that happen, and delays only
	// pods of its own.
	refusedAt map[string]time.Time
	askedAt   time.Time
	supported bool
}

// usable reports whether a new pod of the namespace should get an image volume.
func (v *imageVolumes) usable(namespace string, now time.Time) (bool, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if at, refused := v.refusedAt[namespace]; refused && now.Sub(at) < refusalTime {
		return false, nil
	}
	if v.askedAt.IsZero() || now.Sub(v.askedAt) >= versionInterval {
		info, err := v.discovery.ServerVersion()
		if err != nil {
			return false, fmt.Errorf("ask the API server for its version: %w", err)
		}
		parsed, err := version.ParseGeneric(info.GitVersion)
		v.askedAt, v.supported = now, err == nil && parsed.AtLeast(imageVolumesAlways)
	}
	return v.supported, nil
}

// refused records that a pod of the namespace could not be started with an image volume.
func (v *imageVolumes) refused(namespace string, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	maps.DeleteFunc(v.refusedAt, func(_ string, at time.Time) bool { return now.Sub(at) >= refusalTime })
	if v.refusedAt == nil {
		v.refusedAt = map[string]time.Time{}
	}
	v.refusedAt[namespace] = now
}

// buildObjects returns the objects of the Workspace with the agent delivered as the settings say. If nobody has decided, what the Workspace has
// stays, so that another decision replaces no pod that works; only a pod that cannot be started with an image volume is made again.
func (r *Runtime) buildObjects(
	ctx context.Context, t *tracker, workspace *autov1alpha1.Workspace, settings podspec.Settings, pod *corev1.Pod,
) (*podspec.Objects, error) {
	with := func(delivery AgentDelivery) (*podspec.Objects, error) {
		settings.AgentVolume = delivery == ByImageVolume
		return podspec.Build(workspace, settings)
	}
	if r.options.AgentDelivery != AutomaticDelivery {
		return with(r.options.AgentDelivery)
	}
	byVolume, err := with(ByImageVolume)
	if err != nil {
		return nil, err
	}
	if t.delivery == "" {
		byInitContainer, err := with(ByInitContainer)
		if err != nil {
			return nil, err
		}
		if t.delivery, err = r.deliveryOf(ctx, workspace, byVolume, byInitContainer); err != nil {
			return nil, err
		}
	}
	failed := pod != nil && revisionsOf(pod.Annotations).agent == byVolume.AgentRevision && refusesToStart(pod)
	if t.delivery == ByImageVolume && (failed || t.volumeRefused) {
		t.delivery = ByInitContainer
		r.volumes.refused(workspace.Namespace, time.Now())
		r.options.Log.Info("the pod cannot be started with an image volume, so it gets an init container",
			"workspace", keyOf(workspace).String())
	}
	return with(t.delivery)
}

// deliveryOf returns how the agent gets into the pod of a Workspace that this controller has not seen before: as its StatefulSet says, or, if
// that has another agent or there is none, as a new pod gets it now.
func (r *Runtime) deliveryOf(ctx context.Context, workspace *autov1alpha1.Workspace, byVolume, byInitContainer *podspec.Objects) (AgentDelivery, error) {
	present := &appsv1.StatefulSet{}
	if _, err := r.get(ctx, workspace, byVolume.StatefulSet.Name, present); err != nil {
		return "", err
	}
	switch revisionsOf(present.Spec.Template.Annotations).agent {
	case byVolume.AgentRevision:
		return ByImageVolume, nil
	case byInitContainer.AgentRevision:
		return ByInitContainer, nil
	}
	usable, err := r.volumes.usable(workspace.Namespace, time.Now())
	switch {
	case err != nil:
		return "", err
	case usable:
		return ByImageVolume, nil
	}
	return ByInitContainer, nil
}

// rememberRefusal notes that a pod was refused because of a volume, for example by a policy of the cluster.
func (t *tracker) rememberRefusal(o *observation) {
	if o.pod != nil {
		return
	}
	newest := newestEvent(o.events, "FailedCreate", "SuccessfulCreate")
	t.volumeRefused = newest.Type == corev1.EventTypeWarning && strings.Contains(newest.Message, "volume")
}

// refusesToStart reports whether the container with the agent could not be created, or its program could not be started, as on a node without
// image volumes. The kubelet and the container runtimes have no reason of their own for that.
func refusesToStart(pod *corev1.Pod) bool {
	container := containerOf(pod, autov1alpha1.PulumiContainerName)
	if container == nil || container.State.Running != nil {
		return false
	}
	if waiting := container.State.Waiting; waiting != nil {
		if strings.Contains(waiting.Message, formatError) {
			return false
		}
		if slices.Contains([]string{"CreateContainerError", "RunContainerError"}, waiting.Reason) {
			return true
		}
	}
	for _, state := range []corev1.ContainerState{container.State, container.LastTerminationState} {
		if ended := state.Terminated; ended != nil && !strings.Contains(ended.Message, formatError) && (ended.Reason == "StartError" || ended.Reason == "ContainerCannotRun") {
			return true
		}
	}
	return false
}
