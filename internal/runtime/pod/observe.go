package pod

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
	"github.com/stack-controller/stack-controller/internal/plaintext"
	"github.com/stack-controller/stack-controller/internal/runtime"
	"github.com/stack-controller/stack-controller/internal/runtime/pod/credentials"
	"github.com/stack-controller/stack-controller/internal/runtime/pod/podspec"
)

const (
	// maxEvents and maxEventBytes bound what is read of the events about one object, which the API server keeps for an hour. Everybody who may
	// create events can make one as large as the API server admits, so that few are read at a time, and of each only the start of its message
	// is kept.
	maxEvents     = 200
	maxEventBytes = 8 << 20
	eventsPerPage = 8
	maxEventText  = 1 << 10
	// askTimeout bounds how long an agent, which answers from memory, may take.
	askTimeout = 5 * time.Second
	// recordTime is how long the result of an operation may take to be recorded in the cluster. Until the controller has the agent
	// remove it, the only copy is in the pod.
	recordTime = 2 * time.Minute
)

// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch;delete
// +kubebuilder:rbac:groups="",resources=events,verbs=list

// revisions distinguish one pod template from another.
type revisions struct {
	// inputs is a hash of what the user determines, agent of what the controller determines.
	inputs, agent string
}

// revisionsOf reads the revisions of a pod, or of a template.
func revisionsOf(annotations map[string]string) revisions {
	return revisions{inputs: annotations[autov1alpha1.RevisionHashAnnotation], agent: annotations[podspec.AgentRevisionAnnotation]}
}

// observation is all that a decision is made from.
type observation struct {
	now time.Time
	// wanted are the revisions of a pod that is up to date.
	wanted revisions
	// address is where a pod that is ready is reached from inside the cluster.
	address string
	// certificate is the one that the agent has to have.
	certificate []byte
	// rejected says that the API server did not accept the objects as they are wanted; nil when it did.
	rejected *runtime.Status
	// idle says that there was nothing to do for long, so that no pod is needed.
	idle bool
	// desired is the StatefulSet as it was applied, or should have been. It has no replicas when the Workspace is idle and there is no pod.
	desired *appsv1.StatefulSet
	// statefulSet is nil as long as it was not seen.
	statefulSet *appsv1.StatefulSet
	// pod is nil when there is none.
	pod *corev1.Pod
	// missingSince is since when there is no pod.
	missingSince time.Time
	// retryCreationAt is when the StatefulSet controller may be asked to try again.
	retryCreationAt time.Time
	// events are those about the StatefulSet while there is no pod, or about a pod that takes its time. See needsEvents.
	events []corev1.Event
	// agent is the answer of the agent to whether the pod may go. See needsAnswer.
	agent agentAnswer
	// mayRoll says that the pod is among the few that may be replaced now because the controller is another one.
	mayRoll bool
	// answered says that the agent was found before the kubelet reported that its container runs.
	answered bool
	// renewing says that the agent does not have the key pair yet that is in the Secret now.
	renewing bool
	// announcedAt is since when the status says that the pod is about to be replaced; zero when it does not.
	announcedAt time.Time
}

// agentAnswer is what the agent answered.
type agentAnswer struct {
	// err is why there is no answer, and silentSince since when there has been none.
	err         error
	silentSince time.Time
	// busy says that an operation is not done, or that its result may not be recorded yet.
	busy bool
}

// observe gathers what a decision is made from, beside the objects that were applied: the cheap facts first.
func (r *Runtime) observe(ctx context.Context, t *tracker, workspace *autov1alpha1.Workspace, o *observation) error {
	t.update(o)
	var err error
	if o.events, err = r.readEvents(ctx, workspace, o); err != nil {
		return err
	}
	o.answered = r.foundAgent(workspace, o)
	if o.ownsRunningAgent() {
		if o.renewing, err = r.renewConnection(ctx, workspace, o); err != nil {
			return err
		}
	}
	o.mayRoll = o.pod != nil && o.agentIsOutdated() && o.statefulSetIsApplied() && r.rollout.begin(keyOf(workspace))
	if needsAnswer(o) {
		o.agent = r.askAgent(ctx, t, workspace, o.now)
	}
	// What is not known because the time is over must not be taken for an answer.
	return ctx.Err()
}

// getPod returns the pod with the name of the Workspace's from the cache, whosever it is; nil when there is none.
func (r *Runtime) getPod(ctx context.Context, workspace *autov1alpha1.Workspace) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if found, err := r.get(ctx, workspace, podspec.PodName(workspace), pod); !found {
		return nil, err
	}
	return pod, nil
}

// readEvents reads the events that the decision needs, if any. They are not watched: there are many, and few are needed.
func (r *Runtime) readEvents(ctx context.Context, workspace *autov1alpha1.Workspace, o *observation) ([]corev1.Event, error) {
	about := needsEvents(o)
	if about == "" {
		return nil, nil
	}
	var kept []corev1.Event
	for token, read := "", 0; len(kept) < maxEvents && read < maxEventBytes; {
		page := &corev1.EventList{}
		err := r.options.Live.List(ctx, page, ctrlclient.InNamespace(workspace.Namespace),
			ctrlclient.MatchingFields{"involvedObject.uid": string(about)}, ctrlclient.Limit(eventsPerPage), ctrlclient.Continue(token))
		if err != nil {
			return nil, fmt.Errorf("list the events about the pod: %w", err)
		}
		for i := range page.Items {
			event := &page.Items[i]
			read += event.Size()
			kept = append(kept, corev1.Event{
				ObjectMeta: metav1.ObjectMeta{CreationTimestamp: event.CreationTimestamp},
				Type:       strings.Clone(plaintext.Cut(event.Type, maxEventText)), Reason: strings.Clone(plaintext.Cut(event.Reason, maxEventText)),
				Message:        strings.Clone(plaintext.Cut(event.Message, maxEventText)),
				FirstTimestamp: event.FirstTimestamp, LastTimestamp: event.LastTimestamp, EventTime: event.EventTime, Series: event.Series,
			})
		}
		if token = page.Continue; token == "" {
			break
		}
	}
	return kept, nil
}

// askAgent asks the agent whether its pod may go.
func (r *Runtime) askAgent(ctx context.Context, t *tracker, workspace *autov1alpha1.Workspace, now time.Time) agentAnswer {
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var info *proto.Info
	agent, err := r.Connect(asking, workspace)
	if err == nil {
		info, err = agent.GetInfo(asking)
	}
	if failed, ok := errors.AsType[*client.Error](err); ok && failed.Code == codes.Unauthenticated {
		// The token may have been revoked before its time.
		r.tokens.Drop(credentials.Audience(workspace.Namespace, workspace.Name))
	}
	if ctx.Err() != nil {
		return agentAnswer{err: ctx.Err(), silentSince: now}
	}
	switch {
	case err == nil:
		t.silentSince = time.Time{}
	case t.silentSince.IsZero():
		t.silentSince = now
	}
	answer := agentAnswer{err: err, silentSince: t.silentSince}
	for _, operation := range info.GetOperations() {
		// What would be lost with the pod.
		answer.busy = answer.busy || !operation.GetState().Final() || now.Sub(operation.GetEndTime().AsTime()) < recordTime
	}
	return answer
}

// statefulSetIsApplied reports whether the StatefulSet makes pods that are up to date, as far as its controller has reported.
func (o *observation) statefulSetIsApplied() bool {
	return o.statefulSet != nil && revisionsOf(o.statefulSet.Spec.Template.Annotations) == o.wanted &&
		o.statefulSet.Status.ObservedGeneration >= o.statefulSet.Generation
}

// owned reports whether the pod is one of the StatefulSet.
func (o *observation) owned() bool {
	return o.statefulSet != nil && metav1.IsControlledBy(o.pod, o.statefulSet)
}

// ownsRunningAgent reports whether the pod is one of the StatefulSet and its agent can be called.
func (o *observation) ownsRunningAgent() bool {
	return o.pod != nil && o.owned() && o.agentRuns()
}

// agentRuns reports whether there is a process to talk to in the pod.
func (o *observation) agentRuns() bool { return o.answered || agentRuns(o.pod) }

// podHasInputs reports whether the pod is what the user wants.
func (o *observation) podHasInputs() bool {
	return o.pod != nil && revisionsOf(o.pod.Annotations).inputs == o.wanted.inputs
}

// agentIsOutdated reports whether the pod is what the user wants and has the agent of another controller.
func (o *observation) agentIsOutdated() bool {
	return o.podHasInputs() && revisionsOf(o.pod.Annotations).agent != o.wanted.agent
}

// containerOf returns the state of a container of the pod; nil when the kubelet has not reported it.
func containerOf(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].Name == name {
			return &pod.Status.ContainerStatuses[i]
		}
	}
	return nil
}

// conditionOf returns a condition of the pod, or an empty one.
func conditionOf(pod *corev1.Pod, name corev1.PodConditionType) corev1.PodCondition {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == name {
			return condition
		}
	}
	return corev1.PodCondition{}
}

// agentRuns reports whether there is a process to talk to.
func agentRuns(pod *corev1.Pod) bool {
	container := containerOf(pod, autov1alpha1.PulumiContainerName)
	ended := pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
	return container != nil && container.State.Running != nil && pod.Status.PodIP != "" && !ended
}
