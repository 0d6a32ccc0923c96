package update

import (
	"context"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/utils/ptr"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// operationKinds are the operations by the type of an Update.
var operationKinds = map[autov1alpha1.UpdateType]proto.OperationKind{
	autov1alpha1.UpdateTypePreview: proto.OperationKind_OPERATION_KIND_PREVIEW,
	autov1alpha1.UpdateTypeUp:      proto.OperationKind_OPERATION_KIND_UP,
	autov1alpha1.UpdateTypeRefresh: proto.OperationKind_OPERATION_KIND_REFRESH,
	autov1alpha1.UpdateTypeDestroy: proto.OperationKind_OPERATION_KIND_DESTROY,
}

// maxLogLevel is the highest verbosity of pulumi's log.
const maxLogLevel = 11

// describeOperation builds the request with all that the operation needs, as it is now: Secrets and ConfigMaps are read at
// this moment, through the references. The errors to decide on are *missingError and *invalidError.
func (r *Reconciler) describeOperation(ctx context.Context, o *observation, values *references) (*proto.StartOperationRequest, error) {
	workspace, update := o.workspace, o.update
	kind, ok := operationKinds[update.Spec.Type]
	if !ok {
		return nil, invalidf("spec.type %q is not one of preview, up, refresh, destroy", update.Spec.Type)
	}
	request := &proto.StartOperationRequest{
		Id:                string(update.UID),
		Kind:              kind,
		Stack:             update.Spec.StackName,
		CreateStack:       !ptr.Deref(update.Spec.RequireStack, false),
		Options:           optionsOf(workspace, update),
		CommitMetadata:    commitMetadata(o.source),
		AfterInterruption: ptr.Deref(update.Spec.AfterInterruption, false),
	}
	if update.Spec.Timeout != nil {
		request.Timeout = durationpb.New(update.Spec.Timeout.Duration)
	}
	if err := setSource(request, o, r.pods); err != nil {
		return nil, err
	}
	var err error
	if request.Env, err = values.environment(ctx, workspace); err != nil {
		return nil, err
	}
	return request, setStack(ctx, request, workspace, values)
}

// setStack takes over what the Workspace says about the stack; a stack that it does not name has no configuration.
func setStack(ctx context.Context, request *proto.StartOperationRequest, workspace *autov1alpha1.Workspace, values *references) error {
	at := slices.IndexFunc(workspace.Spec.Stacks, func(stack autov1alpha1.WorkspaceStack) bool { return stack.Name == request.GetStack() })
	if at < 0 {
		return nil
	}
	stack := &workspace.Spec.Stacks[at]
	request.CreateStack = request.CreateStack && ptr.Deref(stack.Create, true)
	request.SecretsProvider = ptr.Deref(stack.SecretsProvider, "")
	request.Environments = stack.Environment
	var err error
	request.Config, err = values.config(ctx, stack.Config)
	return err
}

// setSource says where the program is. In a pod it is in the directory of the workspace when nothing else is said: the image or an
// init container brought it.
func setSource(request *proto.StartOperationRequest, o *observation, pods bool) error {
	workspace, update := o.workspace, o.update
	spec := &workspace.Spec
	switch {
	case o.source != nil:
		request.Source = artifactSource(o.artifact.digest, o.source.Dir)
	case spec.Local != nil:
		request.Source = &proto.StartOperationRequest_Local{Local: &proto.LocalSource{Dir: spec.Local.Dir}}
	case spec.ProjectInfo != nil:
		if update.Spec.Type != autov1alpha1.UpdateTypeDestroy && update.Spec.Type != autov1alpha1.UpdateTypeRefresh {
			return invalidf("workspace %q has no program, only spec.projectInfo, which is enough for destroy and refresh but not for %s",
				workspace.Name, update.Spec.Type)
		}
		request.Source = &proto.StartOperationRequest_Project{
			Project: &proto.ProjectSource{Name: spec.ProjectInfo.Name, Runtime: spec.ProjectInfo.Runtime},
		}
	case pods:
		request.Source = &proto.StartOperationRequest_Local{Local: &proto.LocalSource{}}
	default:
		return invalidf("neither the update nor workspace %q has a source", workspace.Name)
	}
	return nil
}

func artifactSource(digest, dir string) *proto.StartOperationRequest_Artifact {
	return &proto.StartOperationRequest_Artifact{Artifact: &proto.ArtifactSource{Digest: digest, Dir: dir}}
}

func optionsOf(workspace *autov1alpha1.Workspace, update *autov1alpha1.Update) *proto.OperationOptions {
	spec := &update.Spec
	return &proto.OperationOptions{
		Parallel:               ptr.Deref(spec.Parallel, 0),
		Message:                ptr.Deref(spec.Message, ""),
		ExpectNoChanges:        ptr.Deref(spec.ExpectNoChanges, false),
		Replace:                spec.Replace,
		Target:                 spec.Target,
		TargetDependents:       ptr.Deref(spec.TargetDependents, false),
		Refresh:                ptr.Deref(spec.Refresh, false),
		ExpectNoRefreshChanges: ptr.Deref(spec.ExpectNoRefreshChanges, false),
		ContinueOnError:        ptr.Deref(spec.ContinueOnError, false),
		Remove:                 ptr.Deref(spec.Remove, false),
		RunProgram:             ptr.Deref(spec.RunProgram, false),
		LogLevel:               min(workspace.Spec.PulumiLogLevel, maxLogLevel),
	}
}
