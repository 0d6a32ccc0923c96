package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// chosen reads the Stacks that the command line names, or all Stacks of the namespace.
func (c *cluster) chosen(ctx context.Context, names []string, all bool) ([]pulumiv1.Stack, error) {
	if all {
		list := &pulumiv1.StackList{}
		err := c.list(ctx, list, client.InNamespace(c.namespace))
		return list.Items, err
	}
	var found []pulumiv1.Stack
	for _, name := range names {
		stack := pulumiv1.Stack{}
		if err := c.read(ctx, c.key(name), &stack); err != nil {
			return nil, err
		}
		found = append(found, stack)
	}
	return found, nil
}

// stackCommand returns a command for the Stacks that its arguments name, or with --all for all Stacks of the namespace.
func (s *session) stackCommand(short, long string, run func(context.Context, *cluster, []pulumiv1.Stack) error) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "stack [NAME ...]", Short: short, Long: long,
		ValidArgsFunction: s.completeNames(stacks()),
		Args: arguments(func(_ *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return errors.New("name Stacks, or use --all")
			}
			return nil
		}),
		RunE: s.onCluster(func(ctx context.Context, c *cluster, args []string) error {
			found, err := c.chosen(ctx, args, all)
			if err != nil {
				return err
			}
			if len(found) == 0 {
				s.log.Warning("there are no Stacks in namespace %s", c.namespace)
			}
			return run(ctx, c, found)
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "All Stacks of the namespace.")
	return cmd
}

func (s *session) suspend() *cobra.Command {
	return group("suspend", "Suspend Stacks", s.stackCommand("Suspend Stacks",
		"Suspend Stacks, so that no new update starts. A running update continues; 'cancel' stops it.",
		func(ctx context.Context, c *cluster, found []pulumiv1.Stack) error {
			for i := range found {
				if err := s.suspendStack(ctx, c, &found[i]); err != nil {
					return err
				}
			}
			return nil
		}))
}

func (s *session) suspendStack(ctx context.Context, c *cluster, stack *pulumiv1.Stack) error {
	if stack.Spec.Suspend {
		s.log.Success("Stack %s is suspended already", stack.Name)
		return nil
	}
	s.log.Step("suspending Stack %s in %s namespace", stack.Name, stack.Namespace)
	before := stack.DeepCopy()
	stack.Spec.Suspend = true
	delete(stack.Annotations, pulumiv1.CancelUpdateAnnotation) // which an earlier cancel may have left
	if err := c.change(ctx, before, stack); err != nil {
		return err
	}
	s.log.Success("Stack suspended")
	return nil
}

func (s *session) resume() *cobra.Command {
	var options waiting
	cmd := s.stackCommand("Resume Stacks",
		"Resume Stacks, run an update of each, and wait until they are ready.",
		func(ctx context.Context, c *cluster, found []pulumiv1.Stack) error {
			return s.resumeStacks(ctx, c, found, options)
		})
	options.addFlags(cmd)
	return group("resume", "Resume Stacks", cmd)
}

func (s *session) resumeStacks(ctx context.Context, c *cluster, found []pulumiv1.Stack, options waiting) error {
	request := s.Now().Format(time.RFC3339Nano)
	var resumed []*pulumiv1.Stack
	for i := range found {
		stack := &found[i]
		if !stack.Spec.Suspend {
			s.log.Success("Stack %s is not suspended", stack.Name)
			continue
		}
		s.log.Step("resuming Stack %s in %s namespace", stack.Name, stack.Namespace)
		before := stack.DeepCopy()
		stack.Spec.Suspend = false
		delete(stack.Annotations, pulumiv1.CancelUpdateAnnotation)
		metav1.SetMetaDataAnnotation(&stack.ObjectMeta, meta.ReconcileRequestAnnotation, request)
		if err := c.change(ctx, before, stack); err != nil {
			return err
		}
		s.log.Success("Stack resumed")
		resumed = append(resumed, stack)
	}
	var problems []error
	for _, stack := range resumed {
		problems = append(problems, s.finish(ctx, c, stack, request, options))
	}
	return errors.Join(problems...)
}

func (s *session) cancel() *cobra.Command {
	var options waiting
	cmd := &cobra.Command{
		Use: "stack NAME", Short: "End the running update of a Stack, and suspend the Stack",
		Long: "End the running update of a Stack. Pulumi gets an interrupt signal, and up to five minutes to finish the resources\n" +
			"that it is working on. The Stack is suspended, because it would start the same update again. To continue, use 'resume'.",
	}
	s.onStack(cmd, func(ctx context.Context, c *cluster, stack *pulumiv1.Stack) error {
		return s.cancelUpdate(ctx, c, stack, options)
	})
	options.addFlags(cmd)
	return group("cancel", "End a running update", cmd)
}

func (s *session) cancelUpdate(ctx context.Context, c *cluster, stack *pulumiv1.Stack, options waiting) error {
	current := stack.Status.CurrentUpdate
	if current == nil {
		s.log.Success("no update of Stack %s is running", stack.Name)
		return nil
	}
	s.log.Step("suspending Stack %s in %s namespace, and cancelling update %s", stack.Name, stack.Namespace, current.Name)
	before := stack.DeepCopy()
	stack.Spec.Suspend = true
	metav1.SetMetaDataAnnotation(&stack.ObjectMeta, pulumiv1.CancelUpdateAnnotation, "true")
	if err := c.change(ctx, before, stack); err != nil {
		return err
	}
	if !options.wait {
		return nil
	}
	s.log.Waiting("waiting for update %s to end", current.Name)
	err := s.await(ctx, options.timeout, "the end of update "+current.Name, func(ctx context.Context) (progress, error) {
		if err := c.read(ctx, c.key(stack.Name), stack); err != nil {
			return progress{}, err
		}
		if stack.Status.CurrentUpdate == nil || stack.Status.CurrentUpdate.Name != current.Name {
			return progress{done: true}, nil
		}
		return c.progressOf(ctx, stack), nil
	})
	if err != nil {
		return err
	}
	return s.afterCancel(ctx, c, stack, current.Name)
}

// afterCancel removes the annotation, so that the Stack can be resumed, and logs how the Update ended.
func (s *session) afterCancel(ctx context.Context, c *cluster, stack *pulumiv1.Stack, ended string) error {
	before := stack.DeepCopy()
	delete(stack.Annotations, pulumiv1.CancelUpdateAnnotation)
	if err := c.change(ctx, before, stack); err != nil {
		return err
	}
	update, how := &autov1alpha1.Update{}, "did not start"
	if err := c.read(ctx, c.key(ended), update); err == nil {
		how = fmt.Sprintf("ended as %s: %s", stateOf(update).Text, short(update.Status.Message))
	}
	s.log.Success("update %s %s", ended, how)
	s.log.Success("Stack %s is suspended; '%s resume stack %s' lets it go on", stack.Name, invocation(s.Program), stack.Name)
	return nil
}
