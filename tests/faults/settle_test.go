package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// maxSettle bounds the wait even while something happens: nothing in here takes so long unless it goes round in circles.
const maxSettle = 8 * time.Minute

// settle waits until every app is as wanted and nothing is left behind, as long as something happens meanwhile.
func (s *scene) settle(ctx context.Context, apps []*app) error {
	ctx, cancel := context.WithTimeout(ctx, maxSettle)
	defer cancel()
	last, since := "", time.Now()
	for {
		err := s.unsettled(ctx, apps)
		if err == nil {
			return nil
		}
		if now := fmt.Sprint(s.watcher.seen(), err); now != last {
			last, since = now, time.Now()
		}
		if !wait(ctx, 2*pollInterval) || time.Since(since) > patience {
			return fmt.Errorf("nothing happened for %s: %w", time.Since(since).Round(time.Second), err)
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
	if locks := s.locks(); len(locks) > 0 {
		return fmt.Errorf("%w: locks in the backend: %v", errNotSettled, locks)
	}
	if left := s.processes(); len(left) > 0 {
		return fmt.Errorf("%w: processes: %v", errNotSettled, left)
	}
	return nil
}

func (a *app) unsettled(ctx context.Context) error {
	a.mu.Lock()
	deleted, sha, request := a.deleted, a.sha, a.request
	a.mu.Unlock()
	stack := &pulumiv1.Stack{}
	switch err := a.scene.get(ctx, a.Key(), stack); {
	case apierrors.IsNotFound(err) && deleted:
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", errNotSettled, err)
	}
	if err := errors.Join(a.help(ctx, stack), a.helpEvicted(ctx, stack)); err != nil {
		return err
	}
	if deleted {
		return fmt.Errorf("%w: it is not deleted: %s", errNotSettled, conditions.GetMessage(stack, meta.ReadyCondition))
	}
	source := &sourcev1.GitRepository{}
	if err := a.scene.get(ctx, a.Key(), source); err != nil {
		return fmt.Errorf("%w: %w", errNotSettled, err)
	}
	if source.Status.Artifact == nil || !strings.HasSuffix(source.Status.Artifact.Revision, sha) {
		return fmt.Errorf("%w: there is no artifact of commit %s yet", errNotSettled, sha)
	}
	switch last := stack.Status.LastUpdate; {
	case !conditions.IsReady(stack) || stack.Status.ObservedGeneration != stack.Generation || stack.Status.CurrentUpdate != nil:
		ready := conditions.Get(stack, meta.ReadyCondition)
		return fmt.Errorf("%w: %v", errNotSettled, ready)
	case last == nil || last.LastSuccessfulCommit != source.Status.Artifact.Digest || last.Generation != stack.Generation:
		return fmt.Errorf("%w: it is Ready with another update than that of the last change: %+v", errNotSettled, last)
	case request != "" && stack.Status.LastHandledReconcileAt != request:
		return fmt.Errorf("%w: the request is not handled", errNotSettled)
	}
	updates := &autov1alpha1.UpdateList{}
	if err := a.scene.insist(ctx, func(ctx context.Context) error {
		return a.scene.system.Client.List(ctx, updates, client.InNamespace(a.Namespace))
	}); err != nil {
		return fmt.Errorf("%w: %w", errNotSettled, err)
	}
	for _, update := range updates.Items {
		if !update.IsComplete() || !update.DeletionTimestamp.IsZero() {
			return fmt.Errorf("%w: Update %s is %s", errNotSettled, update.Name, update.Status.State)
		}
	}
	return nil
}

// help does what the documentation asks a person to do when pulumi was killed while it created a resource: it forgets the
// attempt. Our resources do not mind.
func (a *app) help(ctx context.Context, stack *pulumiv1.Stack) error {
	message := conditions.GetMessage(stack, meta.ReadyCondition)
	if !strings.Contains(message, "was killed while it created") || stack.Status.CurrentUpdate != nil || stack.Status.LastUpdate == nil {
		return nil
	}
	if a.seenHelp == stack.Status.LastUpdate.Name {
		return nil
	}
	a.seenHelp = stack.Status.LastUpdate.Name
	for _, args := range [][]string{
		{"cancel", "--yes", "--stack", "dev"},
		{"refresh", "--clear-pending-creates", "--yes", "--skip-preview", "--stack", "dev"},
	} {
		if err := a.pulumi(ctx, args...); err != nil && args[0] != "cancel" {
			return err
		}
	}
	a.mu.Lock()
	a.forgotten++
	a.mu.Unlock()
	return a.patch(ctx, func(stack *pulumiv1.Stack) {
		metav1.SetMetaDataAnnotation(&stack.ObjectMeta, pulumiv1.ReconcileRequestAnnotation, fmt.Sprint("helped-", a.forgotten))
	})
}

// pulumi runs the CLI by hand, in a project of the app's name.
func (a *app) pulumi(ctx context.Context, args ...string) error {
	dir, err := os.MkdirTemp(a.scene.system.Dir, "by-hand-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "Pulumi.yaml"), []byte("name: "+a.Name+"\nruntime: yaml\n"), 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, a.scene.cli, append(args, "--non-interactive")...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "PULUMI_HOME=" + filepath.Join(dir, "home"), "PULUMI_SKIP_UPDATE_CHECK=true",
		"PULUMI_BACKEND_URL=" + a.scene.system.BackendURL, "PULUMI_CONFIG_PASSPHRASE=" + passphrase,
	}
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pulumi %s by hand: %w\n%s", args[0], err, output)
	}
	return nil
}

// passphrase is that of the Secret that the stage makes.
const passphrase = "correct horse battery staple"

// judge checks, once all is settled, what must hold then.
func (s *scene) judge(apps []*app) error {
	_, problems := s.watcher.take()
	if problems != nil {
		problems = fmt.Errorf("statuses that contradict themselves:\n%w", problems)
	}
	for _, a := range apps {
		a.mu.Lock()
		problems = errors.Join(problems, a.audit())
		a.mu.Unlock()
	}
	return problems
}
