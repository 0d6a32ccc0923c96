package compatibility_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// canary stands in every secret value of the manifests here. Only what users wrote in plain text by themselves may show it.
const canary = "canary"

// findCanaries names what stack-controller wrote with a secret value in it: its log, statuses, Updates and events.
func findCanaries(ctx context.Context) (leaks []string, err error) {
	log, err := os.ReadFile(system.ControllerLog())
	if err != nil {
		return nil, err
	}
	written := map[string]any{"log": string(log)}
	stacks, workspaces, updates, programs, events :=
		&pulumiv1.StackList{}, &autov1alpha1.WorkspaceList{}, &autov1alpha1.UpdateList{}, &pulumiv1.ProgramList{}, &corev1.EventList{}
	for _, read := range []error{
		system.Client.List(ctx, stacks), system.Client.List(ctx, workspaces), system.Client.List(ctx, updates),
		system.Client.List(ctx, programs), system.Client.List(ctx, events),
	} {
		if read != nil {
			return nil, read
		}
	}
	for _, stack := range stacks.Items {
		written["the status of Stack "+stack.Namespace+"/"+stack.Name] = stack.Status
	}
	for _, workspace := range workspaces.Items {
		written["the status of Workspace "+workspace.Namespace+"/"+workspace.Name] = workspace.Status
	}
	for _, program := range programs.Items {
		written["the status of Program "+program.Namespace+"/"+program.Name] = program.Status
	}
	written["Updates"] = updates.Items
	written["events"] = events.Items
	for place, content := range written {
		encoded, err := json.Marshal(content)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", place, err)
		}
		if strings.Contains(string(encoded), canary) {
			leaks = append(leaks, place)
		}
	}
	return leaks, nil
}
