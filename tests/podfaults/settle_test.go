package podfaults_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
)

// maxSettle bounds how long it may take until everything is as wanted: a container that was killed again and again starts after
// some minutes.
const maxSettle = 4 * time.Minute

// settle waits until every app is as wanted and nothing is left behind.
func (s *scene) settle(ctx context.Context, apps []*app) error {
	ctx, cancel := context.WithTimeout(ctx, maxSettle)
	defer cancel()
	for {
		err := s.unsettled(ctx, apps)
		if err == nil {
			return nil
		}
		if !wait(ctx, 2*pollInterval) {
			return fmt.Errorf("after %s it is not settled: %w", maxSettle, err)
		}
	}
}

// unsettled tells what is not yet as it has to be in the end.
func (s *scene) unsettled(ctx context.Context, apps []*app) error {
	for _, a := range apps {
		if err := a.unsettled(ctx); err != nil {
			return fmt.Errorf("%s: %w", a.Name, err)
		}
	}
	for _, a := range apps {
		if locks := a.locks(); len(locks) > 0 {
			return fmt.Errorf("locks in the backend: %v", locks)
		}
		if left := s.observer.leftOver(a.Name + "-workspace-0"); len(left) > 0 {
			return fmt.Errorf("processes of %s: %v", a.Name, left)
		}
	}
	return nil
}

func (a *app) unsettled(ctx context.Context) error {
	a.mu.Lock()
	deleted, sha, request := a.deleted, a.sha, a.request
	a.mu.Unlock()
	reader, stack := a.scene.system.Client, &pulumiv1.Stack{}
	switch err := reader.Get(ctx, a.Key(), stack); {
	case apierrors.IsNotFound(err) && deleted:
		return a.gone(ctx)
	case err != nil:
		return err
	}
	if err := a.help(ctx, stack); err != nil {
		return err
	}
	if deleted {
		return fmt.Errorf("it is not deleted: %s", conditions.GetMessage(stack, meta.ReadyCondition))
	}
	source := &sourcev1.GitRepository{}
	if err := reader.Get(ctx, a.Key(), source); err != nil {
		return err
	}
	if source.Status.Artifact == nil || !strings.HasSuffix(source.Status.Artifact.Revision, sha) {
		return fmt.Errorf("there is no artifact of commit %s yet", sha)
	}
	switch last := stack.Status.LastUpdate; {
	case !statuscheck.Ready("")(stack):
		return fmt.Errorf("%v", conditions.Get(stack, meta.ReadyCondition))
	case last == nil || last.LastSuccessfulCommit != source.Status.Artifact.Digest || last.Generation != stack.Generation:
		return fmt.Errorf("it is Ready with another update than that of the last change: %+v", last)
	case request != "" && a.helpedFor == "" && stack.Status.ObservedReconcileRequest != request:
		return errors.New("the request is not handled")
	}
	workspace := &autov1alpha1.Workspace{}
	pod := a.pod(ctx)
	switch err := reader.Get(ctx, a.Key(), workspace); {
	case apierrors.IsNotFound(err) && pod == nil:
		// It was deleted, and is made again when there is something to do.
	case err != nil:
		return fmt.Errorf("its pod is there: %t: %w", pod != nil, err)
	case !conditions.IsReady(workspace) || workspace.Status.ObservedGeneration != workspace.Generation || workspace.DeletionTimestamp != nil:
		return fmt.Errorf("the workspace is not ready: %v", workspace.Status.Conditions)
	case pod == nil || pod.DeletionTimestamp != nil:
		return errors.New("the workspace has no pod")
	}
	updates := &autov1alpha1.UpdateList{}
	if err := reader.List(ctx, updates, client.InNamespace(a.Namespace)); err != nil {
		return err
	}
	for _, update := range updates.Items {
		if !update.IsComplete() || !update.DeletionTimestamp.IsZero() {
			return fmt.Errorf("update %s is %s", update.Name, update.Status.State)
		}
	}
	return nil
}

// gone tells what is left of a Stack that was deleted.
func (a *app) gone(ctx context.Context) error {
	for _, list := range []client.ObjectList{&autov1alpha1.UpdateList{}, &autov1alpha1.WorkspaceList{}} {
		if err := a.scene.system.Client.List(ctx, list, client.InNamespace(a.Namespace), client.Limit(1)); err != nil {
			return err
		}
		switch list := list.(type) {
		case *autov1alpha1.UpdateList:
			if len(list.Items) > 0 {
				return fmt.Errorf("update %s is left", list.Items[0].Name)
			}
		case *autov1alpha1.WorkspaceList:
			if len(list.Items) > 0 {
				return fmt.Errorf("workspace %s is left", list.Items[0].Name)
			}
		}
	}
	if a.pod(ctx) != nil {
		return errors.New("the pod of its workspace is left")
	}
	return nil
}

// help does what the documentation asks a person to do when pulumi was killed while it created a resource: it forgets the
// attempt, in the pod. Our resources do not mind.
func (a *app) help(ctx context.Context, stack *pulumiv1.Stack) error {
	message := conditions.GetMessage(stack, meta.ReadyCondition)
	last := stack.Status.LastUpdate
	if !strings.Contains(message, "was killed while it created") || stack.Status.CurrentUpdate != nil || last == nil || a.helpedFor == last.Name {
		return nil
	}
	const script = "export PULUMI_CONFIG_PASSPHRASE='correct horse battery staple'\n" +
		"pulumi cancel --yes; pulumi refresh --clear-pending-creates --yes --skip-preview --non-interactive"
	output, err := a.scene.system.Cluster.Kubectl(ctx, "exec", "--namespace="+a.Namespace, a.Name+"-workspace-0",
		"--container="+autov1alpha1.PulumiContainerName, "--", "sh", "-c", script)
	if err != nil {
		return fmt.Errorf("help as the documentation says: %w\n%s", err, output)
	}
	a.helpedFor = last.Name
	a.mu.Lock()
	a.forgotten++
	a.mu.Unlock()
	return a.annotate(ctx, fmt.Sprint("helped-", a.forgotten))
}

// watch begins to check every status of the apps.
func (s *scene) watch(ctx context.Context, apps []*app) error {
	for _, a := range apps {
		a.mu.Lock()
		a.helpedFor = ""
		a.request = ""
		a.mu.Unlock()
		var err error
		if a.statuses, err = statuscheck.Watch(ctx, s.system.Client, a.Namespace); err != nil {
			return err
		}
	}
	return nil
}

// judge checks, once all is settled, what must hold then. It returns how many statuses were checked.
func (s *scene) judge(apps []*app) (checked int, err error) {
	problems := s.observer.take()
	for _, a := range apps {
		count, contradictions := a.statuses.Stop()
		checked += count
		if contradictions != nil {
			problems = errors.Join(problems, fmt.Errorf("statuses that contradict themselves:\n%w", contradictions))
		}
		a.mu.Lock()
		problems = errors.Join(problems, a.audit())
		a.mu.Unlock()
	}
	return checked, problems
}
