package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/spf13/cobra"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// attemptTimeout is how long an Update is waited for that tries to get a lock. An attempt takes less than half of it.
const attemptTimeout = 30 * time.Second

func (s *session) state() *cobra.Command {
	return group("state", "Save and restore the state of a stack", s.exportState(), s.importState())
}

func (s *session) exportState() *cobra.Command {
	var file string
	var secrets bool
	cmd := &cobra.Command{
		Use: "export NAME", Short: "Write the state of a Stack's Pulumi stack to a file",
		Long: "Write the state of a Stack's Pulumi stack to a file, with 'pulumi stack export' in the pod of its Workspace.",
	}
	s.onStack(cmd, func(ctx context.Context, c *cluster, stack *pulumiv1.Stack) (err error) {
		command := []string{"stack", "export"}
		if secrets {
			command = append(command, "--show-secrets")
		}
		export := func(out io.Writer) error { return c.pulumi(ctx, stack, nil, out, command...) }
		if file == "" {
			return export(s.out)
		}
		return replaceFile(file, export)
	})
	cmd.Flags().StringVarP(&file, "file", "f", "", "The file; the standard output without it.")
	cmd.Flags().BoolVar(&secrets, "show-secrets", false, "Write secrets in clear.")
	return cmd
}

// replaceFile writes a file that only its owner may read. A file that exists stays as it is until write has succeeded.
func replaceFile(path string, write func(io.Writer) error) (err error) {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // a link stays one
	}
	var out *os.File
	if info, statErr := os.Stat(path); statErr == nil && !info.Mode().IsRegular() {
		out, err = os.OpenFile(path, os.O_WRONLY, 0) // such as a pipe
	} else if out, err = os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*"); err == nil {
		defer func() {
			if err == nil {
				err = os.Rename(out.Name(), path)
			}
			if err != nil {
				err = errors.Join(err, os.Remove(out.Name()))
			}
		}()
	}
	if err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	return errors.Join(write(out), out.Close())
}

func (s *session) importState() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "import NAME", Short: "Replace the state of a Stack's Pulumi stack by that of a file",
		Long: "Replace the state of a Stack's Pulumi stack by that of a file, with 'pulumi stack import' in the pod of its\n" +
			"Workspace. The Stack has to be suspended, so that no update runs meanwhile.",
	}
	s.onStack(cmd, func(ctx context.Context, c *cluster, stack *pulumiv1.Stack) error {
		if current := stack.Status.CurrentUpdate; !stack.Spec.Suspend || current != nil {
			return fmt.Errorf("the Stack %q is not at rest: suspend it, and let its update end, or cancel it", stack.Name)
		}
		if err := c.refuseRunning(ctx, stack); err != nil {
			return err
		}
		in := s.In
		if file != "" {
			opened, err := os.Open(file)
			if err != nil {
				return fmt.Errorf("read the state: %w", err)
			}
			defer opened.Close()
			in = opened
		}
		if err := c.pulumi(ctx, stack, in, io.Discard, "stack", "import"); err != nil {
			return err
		}
		s.log.Success("state of %s imported", stack.Spec.Stack)
		return nil
	})
	cmd.Flags().StringVarP(&file, "file", "f", "", "The file; the standard input without it.")
	return cmd
}

func (s *session) unlock() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "stack NAME", Short: "Release the lock of a Stack's Pulumi stack",
		Long: "Release all locks of a Stack's Pulumi stack, with 'pulumi cancel' in the pod of its Workspace. Those of processes\n" +
			"that still run are released, too, and two updates at the same time damage the state: be sure that the holder is\n" +
			"gone. The locks of processes that the controller started are released by itself.",
	}
	s.onStack(cmd, func(ctx context.Context, c *cluster, stack *pulumiv1.Stack) error {
		return s.unlockStack(ctx, cmd, c, stack, yes)
	})
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "Do not ask.")
	return group("unlock", "Release a lock", cmd)
}

func (s *session) unlockStack(ctx context.Context, cmd *cobra.Command, c *cluster, stack *pulumiv1.Stack, yes bool) error {
	if err := s.awaitAttempt(ctx, c, stack); err != nil {
		return err
	}
	if err := s.confirmUnlock(ctx, cmd, stack, yes); err != nil {
		return err
	}
	if err := s.awaitAttempt(ctx, c, stack); err != nil { // one may have started meanwhile
		return err
	}
	if err := c.pulumi(ctx, stack, nil, io.Discard, "cancel", "--yes"); err != nil {
		return err
	}
	s.log.Success("locks of %s released; '%s reconcile stack %s' tries again at once", stack.Spec.Stack, invocation(s.Program), stack.Name)
	return nil
}

// awaitAttempt is refuseRunning that waits for an Update which only tries to get the lock: as long as the Stack shows that it is locked, the running
// one has not got it, and ends soon.
func (s *session) awaitAttempt(ctx context.Context, c *cluster, stack *pulumiv1.Stack) error {
	running := ""
	err := s.await(ctx, attemptTimeout, "the end of the attempt to get the lock", func(ctx context.Context) (progress, error) {
		if err := c.read(ctx, client.ObjectKeyFromObject(stack), stack); err != nil {
			return progress{}, err
		}
		found, err := c.runningUpdate(ctx, stack)
		if err != nil {
			return progress{}, err
		}
		running = found
		return progress{state: "waiting for update " + running + ", which tries to get the lock", done: running == "" || !isLocked(stack)}, nil
	})
	if _, late := errors.AsType[failure](err); err != nil && (running == "" || !late) {
		return err
	}
	return runs(stack, running)
}

// refuseRunning returns an error when an Update works with the state of the Stack, also one that the Stack has not created: it has the lock.
func (c *cluster) refuseRunning(ctx context.Context, stack *pulumiv1.Stack) error {
	running, err := c.runningUpdate(ctx, stack)
	if err != nil {
		return err
	}
	return runs(stack, running)
}

// runs returns an error if there is a running Update of the Stack.
func runs(stack *pulumiv1.Stack, running string) error {
	if running == "" {
		return nil
	}
	return fmt.Errorf("update %s of the Stack %q is running, and has the lock; cancel it instead", running, stack.Name)
}

// runningUpdate returns the name of an Update that works with the state of the Stack; empty if there is none.
func (c *cluster) runningUpdate(ctx context.Context, stack *pulumiv1.Stack) (string, error) {
	list := &autov1alpha1.UpdateList{}
	if err := c.list(ctx, list, client.InNamespace(stack.Namespace)); err != nil {
		return "", err
	}
	for i := range list.Items {
		update := &list.Items[i]
		runs := update.HasStarted() || conditions.IsTrue(update, autov1alpha1.UpdateProgressing)
		if update.Spec.WorkspaceName == stack.Name && update.Spec.Type != autov1alpha1.UpdateTypePreview && runs && !update.IsComplete() {
			return update.Name, nil
		}
	}
	return "", nil
}

// isLocked reports whether the Stack shows that another process has the lock.
func isLocked(stack *pulumiv1.Stack) bool {
	condition := apimeta.FindStatusCondition(stack.Status.Conditions, meta.ReadyCondition)
	return condition != nil && condition.Reason == pulumiv1.UpdateConflictReason
}

// confirmUnlock shows who holds the lock, and asks for confirmation.
func (s *session) confirmUnlock(ctx context.Context, cmd *cobra.Command, stack *pulumiv1.Stack, yes bool) error {
	if isLocked(stack) {
		s.log.Warning("%s", short(conditions.GetMessage(stack, meta.ReadyCondition)))
	} else {
		s.log.Warning("the Stack %q does not report a lock", stack.Name)
	}
	if yes {
		return nil
	}
	if !isTerminal(s.In) {
		return usage(cmd, errors.New("without a terminal, confirm with --yes"))
	}
	return s.confirm(ctx, fmt.Sprintf("Is the holder gone, and shall all locks of %s be released?", stack.Spec.Stack), "nothing was released")
}
