package update

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/utils/ptr"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
)

// operationKinds maps the type of an Update to the kind of its operation.
var operationKinds = map[autov1alpha1.UpdateType]agentpb.OperationKind{
	autov1alpha1.UpdateTypePreview: agentpb.OperationKind_OPERATION_KIND_PREVIEW,
	autov1alpha1.UpdateTypeUp:      agentpb.OperationKind_OPERATION_KIND_UP,
	autov1alpha1.UpdateTypeRefresh: agentpb.OperationKind_OPERATION_KIND_REFRESH,
	autov1alpha1.UpdateTypeDestroy: agentpb.OperationKind_OPERATION_KIND_DESTROY,
}

// previewKinds are the kinds that only show what the operations of operationKinds would do.
var previewKinds = map[autov1alpha1.UpdateType]agentpb.OperationKind{
	autov1alpha1.UpdateTypeRefresh: agentpb.OperationKind_OPERATION_KIND_REFRESH_PREVIEW,
	autov1alpha1.UpdateTypeDestroy: agentpb.OperationKind_OPERATION_KIND_DESTROY_PREVIEW,
}

// plannedKinds are the operations that carry out a plan.
var plannedKinds = map[autov1alpha1.UpdateType]agentpb.OperationKind{
	autov1alpha1.UpdateTypeUp:      agentpb.OperationKind_OPERATION_KIND_PLANNED_UP,
	autov1alpha1.UpdateTypeDestroy: agentpb.OperationKind_OPERATION_KIND_PLANNED_DESTROY,
}

// operationKind is the operation that the Update asks for.
func operationKind(spec *autov1alpha1.UpdateSpec) agentpb.OperationKind {
	if spec.Plan != nil {
		// The API server admits a plan for these types only. For any other type the kind is unspecified, which agents refuse.
		return plannedKinds[spec.Type]
	}
	if preview, can := previewKinds[spec.Type]; can && ptr.Deref(spec.PreviewOnly, false) {
		return preview
	}
	return operationKinds[spec.Type]
}

// maxLogLevel is the highest verbosity of pulumi's log.
const maxLogLevel = 11

// describeOperation builds the request with everything that the operation needs. Secrets and ConfigMaps are read now. The errors to decide
// on are *inputs.MissingError and *inputs.InvalidError. A stack that the Workspace does not list has no configuration.
func describeOperation(ctx context.Context, o *observation, values *inputReader) (request *agentpb.StartOperationRequest, err error) {
	workspace, update := o.workspace, o.update
	request = &agentpb.StartOperationRequest{
		Id:                string(update.UID),
		Kind:              operationKind(&update.Spec),
		Stack:             update.Spec.StackName,
		CreateStack:       !ptr.Deref(update.Spec.RequireStack, false) && previewKinds[update.Spec.Type] != operationKind(&update.Spec),
		Options:           optionsOf(workspace, update),
		CommitMetadata:    commitMetadata(o.source),
		AfterInterruption: ptr.Deref(update.Spec.AfterInterruption, false),
		Interrupted:       o.interrupted,
		NewStack:          ptr.Deref(update.Spec.NewStack, false),
		Plan:              planRequest(o),
	}
	if o.approval.stack != nil {
		// What was created by hand creates no stack where changes have to be approved.
		request.CreateStack = false
	}
	if update.Spec.Timeout != nil {
		request.Timeout = durationpb.New(update.Spec.Timeout.Duration)
	}
	if err := setSource(request, o, values.pods); err != nil {
		return nil, err
	}
	stack := stackOf(workspace, request.GetStack())
	if err := values.addLists(&update.Spec, stack); err != nil {
		return nil, err
	}
	if request.Env, err = values.environment(ctx, workspace); err != nil {
		return nil, err
	}
	if request.Login, err = values.login(workspace, request); err != nil {
		return nil, err
	}
	request.CreateStack = request.CreateStack && ptr.Deref(stack.Create, true)
	request.SecretsProvider = ptr.Deref(stack.SecretsProvider, "")
	request.Environments = stack.Environment
	if request.Config, err = values.config(ctx, stack.Config); err != nil {
		return nil, err
	}
	o.inputs.items, err = values.inputs(ctx, &update.Spec, stack.Inputs)
	request.Config = append(request.Config, o.inputs.items...)
	return request, err
}

// maxPeriods is how many periods a request has at most.
const maxPeriods = 16

// interruptedPeriods returns when the operations of the stack ran that may have left a lock since one succeeded, the latest first: those that were
// cut off, and those that failed while the engine was at work, so that they had the lock. An Update that the
// Pulumi Kubernetes Operator started has no time of its start, and one that was deleted is not known.
func interruptedPeriods(updates []autov1alpha1.Update, stack string) (periods []*agentpb.Period) {
	var ended []*autov1alpha1.Update
	for i := range updates {
		if update := &updates[i]; update.Spec.StackName == stack && update.IsComplete() && !update.ChangesNothing() {
			ended = append(ended, update)
		}
	}
	slices.SortFunc(ended, func(a, b *autov1alpha1.Update) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	for _, update := range ended {
		switch start, end := update.Status.StartTime, update.Status.EndTime; {
		case !update.HasFailed() || len(periods) == maxPeriods:
			return periods
		case (update.WasCutOff() || hadLock(update)) && end != nil:
			start = cmp.Or(start, &update.CreationTimestamp)
			periods = append(periods, &agentpb.Period{Start: timestamppb.New(start.Time), End: timestamppb.New(end.Time)})
		}
	}
	return periods
}

// hadLock reports whether the failed Update had the lock of the stack: one that ended for another reason may not have got it.
func hadLock(update *autov1alpha1.Update) bool {
	return !update.Status.NotRun && conditions.GetReason(update, autov1alpha1.UpdateFailed) == autov1alpha1.UpdateFailedReason
}

// stackOf returns the stack of the Workspace with the name; one without configuration if the Workspace does not list it.
func stackOf(workspace *autov1alpha1.Workspace, name string) *autov1alpha1.WorkspaceStack {
	for i := range workspace.Spec.Stacks {
		if workspace.Spec.Stacks[i].Name == name {
			return &workspace.Spec.Stacks[i]
		}
	}
	return &autov1alpha1.WorkspaceStack{Name: name}
}

// addLists counts the lists of the operation before anything is read for them. The error is an *inputs.InvalidError.
func (b *budget) addLists(spec *autov1alpha1.UpdateSpec, stack *autov1alpha1.WorkspaceStack) error {
	for _, list := range []struct {
		what string
		size int
	}{
		{"configuration values", len(stack.Config) + len(stack.Inputs)}, {"imported environments", len(stack.Environment)},
		{"targets", len(spec.Target)}, {"excluded resources", len(spec.Exclude)}, {"replacements", len(spec.Replace)},
	} {
		if err := b.addEntries(list.size, fmt.Sprintf("%d %s", list.size, list.what)); err != nil {
			return err
		}
	}
	for _, urn := range slices.Concat(spec.Target, spec.Exclude, spec.Replace) {
		if err := b.addText(len("--replace=")+len(urn)+len("\x00")+pointerSize, "the targets, excluded resources and replacements"); err != nil {
			return err
		}
	}
	return nil
}

// setSource sets where the program is. If nothing else names a program, a pod has it in the directory of the workspace: the image or an
// init container put it there.
func setSource(request *agentpb.StartOperationRequest, o *observation, pods bool) error {
	spec, kind := &o.workspace.Spec, o.update.Spec.Type
	fromState := kind == autov1alpha1.UpdateTypeDestroy || kind == autov1alpha1.UpdateTypeRefresh
	switch {
	case o.update.Spec.ProjectInfo != nil && !fromState:
		return inputs.Invalidf("spec.projectInfo is enough for refresh and destroy but not for %s, which needs a program", kind)
	case o.update.Spec.ProjectInfo != nil:
		request.Source = projectSource(o.update.Spec.ProjectInfo)
	case o.source != nil:
		request.Source = &agentpb.StartOperationRequest_Artifact{Artifact: &agentpb.ArtifactSource{Digest: o.artifact.digest, Dir: o.source.Dir}}
	case spec.Local != nil:
		request.Source = &agentpb.StartOperationRequest_Local{Local: &agentpb.LocalSource{Dir: spec.Local.Dir}}
	case spec.ProjectInfo != nil && !fromState:
		return inputs.Invalidf("workspace %q has no program, only spec.projectInfo, which is enough for destroy and refresh but not for %s", o.workspace.Name, kind)
	case spec.ProjectInfo != nil:
		request.Source = projectSource(spec.ProjectInfo)
	case pods:
		request.Source = &agentpb.StartOperationRequest_Local{Local: &agentpb.LocalSource{}}
	default:
		return inputs.Invalidf("neither the update nor workspace %q has a source", o.workspace.Name)
	}
	return nil
}

func projectSource(project *autov1alpha1.ProjectInfo) *agentpb.StartOperationRequest_Project {
	return &agentpb.StartOperationRequest_Project{Project: &agentpb.ProjectSource{Name: project.Name, Runtime: project.Runtime, NeedsProgram: project.NeedsProgram}}
}

// optionsOf returns what the flags of pulumi are made from, in internal/agent/operation/arguments.go.
func optionsOf(workspace *autov1alpha1.Workspace, update *autov1alpha1.Update) *agentpb.OperationOptions {
	spec := &update.Spec
	return &agentpb.OperationOptions{
		Parallel:               ptr.Deref(spec.Parallel, 0),
		Message:                ptr.Deref(spec.Message, ""),
		ExpectNoChanges:        ptr.Deref(spec.ExpectNoChanges, false),
		Replace:                spec.Replace,
		Target:                 spec.Target,
		TargetDependents:       ptr.Deref(spec.TargetDependents, false),
		Exclude:                spec.Exclude,
		ExcludeDependents:      ptr.Deref(spec.ExcludeDependents, false),
		Refresh:                ptr.Deref(spec.Refresh, false),
		ExpectNoRefreshChanges: ptr.Deref(spec.ExpectNoRefreshChanges, false),
		ContinueOnError:        ptr.Deref(spec.ContinueOnError, false),
		Remove:                 ptr.Deref(spec.Remove, false),
		RunProgram:             ptr.Deref(spec.RunProgram, false),
		LogLevel:               min(workspace.Spec.PulumiLogLevel, maxLogLevel),
	}
}
