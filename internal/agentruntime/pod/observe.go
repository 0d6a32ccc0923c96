package pod

import (
	"context"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/credentials"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

const (
	// maxEvents and maxEventBytes bound what is read of the events about one object, which the API server keeps for an hour. Every user who
	// may create events can create one as large as the API server accepts. Therefore only eventsPerPage are read at a time, and of each
	// event's texts only the first maxEventText bytes are kept.
	maxEvents     = 200
	maxEventBytes = 8 << 20
	eventsPerPage = 8
	maxEventText  = 1 << 10
	// askTimeout bounds how long an agent may take to answer. It answers from memory.
	askTimeout = 5 * time.Second
	// recordTime is how long the controller may take to record the result of an operation in the cluster. Until the controller makes the agent
	// remove the result, the only copy is in the pod.
	recordTime = 2 * time.Minute
)

// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch;delete
// +kubebuilder:rbac:groups="",resources=events,verbs=list

// revisions identify a pod template.
type revisions struct {
	// inputs is a hash of what the user determines, agent a hash of what the controller determines.
	inputs, agent string
}

// revisionsOf reads the revisions of a pod, or of a template.
func revisionsOf(annotations map[string]string) revisions {
	return revisions{inputs: annotations[autov1alpha1.RevisionHashAnnotation], agent: annotations[podspec.AgentRevisionAnnotation]}
}

// observation is the input of decide.
type observation struct {
	now time.Time
	// wanted are the revisions of a pod that is up to date.
	wanted revisions
	// address is where the agent in a ready pod is reached from inside the cluster.
	address string
	// certificate is the certificate that the agent must have.
	certificate []byte
	// rejected is the status for an error when the desired objects were applied, for example because the API server refused them; nil if they
	// were applied.
	rejected *agentruntime.Status
	// idle is true when the Workspace had nothing to do for its idle timeout, so that it needs no pod.
	idle bool
	// desired is the StatefulSet as it was applied, or should have been. It has no replicas when the Workspace is idle and there is no pod.
	desired *appsv1.StatefulSet
	// statefulSet is the StatefulSet in the cluster; nil as long as it was not seen.
	statefulSet *appsv1.StatefulSet
	// pod is nil when there is none.
	pod *corev1.Pod
	// missingSince is the time since which there is no pod.
	missingSince time.Time
	// retryCreationAt is when the StatefulSet controller may be made to try again.
	retryCreationAt time.Time
	// events are the events about the StatefulSet while there is no pod, or about a pod that starts slowly. See needsEvents.
	events []corev1.Event
	// agent is the agent's answer to whether the pod may be removed. See needsAnswer.
	agent agentAnswer
	// rollAsked is true when the pod has a place among the few that are replaced for the agent of this controller at the same time, or waits for
	// one. mayRoll is true when it has the place. See rollout.
	rollAsked, mayRoll bool
	// answered is true when a probe found the agent before the kubelet reported that its container runs. renewing is true when the agent does not
	// have the key pair yet that is in the Secret now. See keepConnection.
	answered, renewing bool
	// keptUntil is the time until which a pod with an outdated agent stays, because it could not be deleted.
	keptUntil time.Time
	// announcedAt is the time since which the status says that the pod is about to be replaced; zero when it does not.
	announcedAt time.Time
}

// agentAnswer is what the agent answered.
type agentAnswer struct {
	// err is why there is no answer, and silence for how long there has been none.
	err     error
	silence silence
	// unasked is true when err kept the controller from asking.
	unasked bool
	// busy is true when an operation is not done, or when its result may not have been recorded yet.
	busy bool
}

// observe reads what decide needs besides the objects that were applied. What costs little is read first.
func (r *Runtime) observe(ctx context.Context, t *tracker, workspace *autov1alpha1.Workspace, o *observation) (err error) {
	if o.events, err = r.readEvents(ctx, workspace, o); err != nil && ctx.Err() == nil {
		// The status of the pod is worth more than the events, which only add a cause.
		r.options.Log.Info("cannot read the events about a pod, so its status may lack the cause", "workspace", keyOf(workspace), "problem", err.Error())
	}
	return r.observeAgent(ctx, t, workspace, o)
}

// observeAgent asks the agent if the decision needs its answer.
func (r *Runtime) observeAgent(ctx context.Context, t *tracker, workspace *autov1alpha1.Workspace, o *observation) error {
	if needsAnswer(o) {
		o.agent = r.askAgent(ctx, t, workspace, o.now)
	} else {
		t.silence = silence{} // what it was silent about is over
	}
	// After a timeout, a missing answer must not count as an observation.
	return ctx.Err()
}

// getPod returns the pod with the name of the Workspace's pod from the cache, whoever owns it, or nil if there is none.
func (r *Runtime) getPod(ctx context.Context, workspace *autov1alpha1.Workspace) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if found, err := r.get(ctx, workspace, podspec.PodName(workspace), pod); !found {
		return nil, err
	}
	return pod, nil
}

// readEvents reads the events that the decision needs, if any. Events are not watched: there are many, and few are needed.
func (r *Runtime) readEvents(ctx context.Context, workspace *autov1alpha1.Workspace, o *observation) ([]corev1.Event, error) {
	about := needsEvents(o)
	if about == "" {
		return nil, nil
	}
	var kept []corev1.Event
	for token, read := "", 0; len(kept) < maxEvents && read < maxEventBytes; {
		page := &corev1.EventList{}
		err := r.options.APIReader.List(ctx, page, ctrlclient.InNamespace(workspace.Namespace),
			ctrlclient.MatchingFields{"involvedObject.uid": string(about)}, ctrlclient.Limit(eventsPerPage), ctrlclient.Continue(token))
		if err != nil {
			return nil, fmt.Errorf("list the events about the pod: %w", err)
		}
		for i := range page.Items {
			event := &page.Items[i]
			read += event.Size()
			kept = append(kept, corev1.Event{
				CreationTimestamp: event.CreationTimestamp,
				Type:              strings.Clone(plaintext.Cut(event.Type, maxEventText)), Reason: strings.Clone(plaintext.Cut(event.Reason, maxEventText)),
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

// askAgent asks the agent whether its pod may be removed.
func (r *Runtime) askAgent(ctx context.Context, t *tracker, workspace *autov1alpha1.Workspace, now time.Time) agentAnswer {
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var info *agentpb.Info
	agent, err := r.Connect(asking, workspace)
	if err == nil {
		// Without a token, the call would fail before it reaches the agent.
		err = r.tokens.Have(asking, credentials.Audience(workspace.Namespace, workspace.Name))
	}
	asked := err == nil
	if asked {
		info, err = agent.GetInfo(asking)
	}
	if ctx.Err() != nil {
		return agentAnswer{err: ctx.Err()}
	}
	if asked {
		t.silence.note(now, err)
	} else {
		t.silence.askedAt = now // the time until now does not count
	}
	answer := agentAnswer{err: err, unasked: !asked, silence: t.silence}
	for _, operation := range info.GetOperations() {
		// Without the pod, this operation or its result would be lost.
		answer.busy = answer.busy || !operation.GetState().Final() || now.Sub(operation.GetEndTime().AsTime()) < recordTime
	}
	return answer
}

// statefulSetIsApplied reports whether the StatefulSet creates pods that are up to date, and its controller has observed that.
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

// agentRuns reports whether the agent in the pod can be called.
func (o *observation) agentRuns() bool { return o.answered || agentRuns(o.pod) }

// isOfAnother reports whether the pod is one that another controller created, such as the Pulumi Kubernetes Operator: it does not have the
// revision that every template of this controller has had. Its agent speaks another protocol and has no operation of this controller. An
// operation that it runs for the other controller ends with that controller, and gets the grace period of the pod to do so.
func (o *observation) isOfAnother() bool {
	return o.pod != nil && revisionsOf(o.pod.Annotations).agent == ""
}

// podHasInputs reports whether there is a pod and it has the inputs that the user wants.
func (o *observation) podHasInputs() bool {
	return o.pod != nil && revisionsOf(o.pod.Annotations).inputs == o.wanted.inputs
}

// agentIsOutdated reports whether the pod has the inputs that the user wants, but not the agent of this controller.
func (o *observation) agentIsOutdated() bool {
	return o.podHasInputs() && revisionsOf(o.pod.Annotations).agent != o.wanted.agent
}

// containerOf returns the status of a container of the pod, or nil if the kubelet has not reported it.
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

// agentRuns reports whether the agent in the pod can be called, according to the kubelet.
func agentRuns(pod *corev1.Pod) bool {
	container := containerOf(pod, autov1alpha1.PulumiContainerName)
	ended := pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
	return container != nil && container.State.Running != nil && pod.Status.PodIP != "" && !ended
}
