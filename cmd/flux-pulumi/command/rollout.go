package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/print"
	"github.com/stack-controller/stack-controller/internal/waves"
)

func rollouts() kind {
	return kind{
		name: "rollout", plural: "rollouts",
		newList: func() client.ObjectList { return &autov1alpha1.StackRolloutList{} },
		columns: []column{
			{heading: "NAME", cell: text(client.Object.GetName)},
			{heading: "REVISION", cell: text(func(rollout *autov1alpha1.StackRollout) string {
				if rollout.Status.Target == nil {
					return ""
				}
				return short(rollout.Status.Target.Revision)
			})},
			{heading: "WAVE", cell: text(func(rollout *autov1alpha1.StackRollout) string { return rollout.Status.Wave })},
			{heading: "DONE", cell: text(func(rollout *autov1alpha1.StackRollout) string { return rollout.Status.Done })},
			{heading: "FAILING", cell: text(func(rollout *autov1alpha1.StackRollout) string {
				failing := int32(0)
				for _, wave := range rollout.Status.Waves {
					failing += wave.Failing
				}
				return fmt.Sprint(failing)
			})},
			{heading: "AGE", wide: true, cell: age},
			{heading: "SUSPENDED", cell: text(func(rollout *autov1alpha1.StackRollout) string { return title(rollout.Spec.Suspend) })},
			{heading: "READY", cell: isReady},
			{heading: "MESSAGE", cell: text(func(rollout *autov1alpha1.StackRollout) string {
				return message(rollout.Status.Conditions, meta.ReadyCondition)
			})},
		},
	}
}

// promotion are the flags of the commands that decide on a revision.
type promotion struct {
	waiting
	wave, revision, reason string
	all                    bool
}

func (s *session) rollout() *cobra.Command {
	return group("rollout", "See and steer StackRollouts", s.showRollout(), s.promote(), s.rejectRevision(), s.releaseStack(),
		s.rolloutPlans(), s.approveShape(),
		s.suspendRollout("suspend", "Let no other Stack of a StackRollout have the revision", true),
		s.suspendRollout("resume", "Go on with a StackRollout", false))
}

// onRollout makes cmd run the function for the StackRollout that its argument names.
func (s *session) onRollout(cmd *cobra.Command, run func(context.Context, *cluster, *autov1alpha1.StackRollout) error) {
	cmd.Args, cmd.ValidArgsFunction = arguments(cobra.ExactArgs(1)), s.completeNames(rollouts())
	cmd.RunE = s.onCluster(func(ctx context.Context, c *cluster, args []string) error {
		rollout := &autov1alpha1.StackRollout{}
		if err := c.read(ctx, c.key(args[0]), rollout); err != nil {
			return err
		}
		return run(ctx, c, rollout)
	})
}

func (s *session) promote() *cobra.Command {
	options := promotion{}
	cmd := &cobra.Command{
		Use: "promote NAME", Short: "Let the next wave of a StackRollout begin",
		Long: "Let the wave of a StackRollout begin that waits for a promotion, or the one with the name. With --all, all waves may begin, one after the\n" +
			"other, without promotions and without waiting for the end of a soak. It creates an Approval, which has your name and cannot be changed.",
		Example: fmt.Sprintf("  %[1]s rollout promote infrastructure --revision main@sha1:…\n  %[1]s rollout promote infrastructure --all --reason INC-7", invocation(s.Program)),
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if options.all && options.wave != "" {
				return usage(cmd, errors.New("--all goes without --wave"))
			}
			return s.namesRevision(cmd, options)
		},
	}
	s.onRollout(cmd, func(ctx context.Context, c *cluster, rollout *autov1alpha1.StackRollout) error {
		if options.wave == "" && !options.all {
			if conditions.GetReason(rollout, meta.ReadyCondition) != autov1alpha1.PromotionRequiredReason {
				return failed(exitNotReady, "StackRollout %q does not wait for a promotion: %s; name a wave with --wave, or use --all",
					rollout.Name, message(rollout.Status.Conditions, meta.ReadyCondition))
			}
			options.wave = rollout.Status.Wave
		}
		return s.decideOnRevision(ctx, c, rollout, autov1alpha1.ApprovalApprove, options)
	})
	options.addFlags(cmd)
	cmd.Flags().StringVar(&options.wave, "wave", "", "The wave that may begin.")
	cmd.Flags().BoolVar(&options.all, "all", false, "All waves may begin.")
	return cmd
}

func (s *session) rejectRevision() *cobra.Command {
	options := promotion{}
	cmd := &cobra.Command{
		Use: "reject NAME", Short: "Let no other Stack have the revision of a StackRollout",
		Long: "Let no other Stack have the revision of a StackRollout. This cannot be taken back: only another revision goes on. Stacks that have it\n" +
			"keep it. It creates an Approval with the decision Reject, which has your name.",
		Example: fmt.Sprintf("  %s rollout reject infrastructure --revision main@sha1:… --reason INC-7", invocation(s.Program)),
		PreRunE: func(cmd *cobra.Command, _ []string) error { return s.namesRevision(cmd, options) },
	}
	s.onRollout(cmd, func(ctx context.Context, c *cluster, rollout *autov1alpha1.StackRollout) error {
		return s.decideOnRevision(ctx, c, rollout, autov1alpha1.ApprovalReject, options)
	})
	options.addFlags(cmd)
	return cmd
}

func (s *session) releaseStack() *cobra.Command {
	revision := ""
	cmd := &cobra.Command{
		Use: "release STACK", Short: "Let a Stack have the revision of its StackRollout before its turn",
		Long: "Let a Stack have the revision of its StackRollout now, whatever waves and windows say: a hot fix for one Stack. It sets the annotation\n" +
			pulumiv1.ReleaseRevisionAnnotation + ", which needs the verb \"bypass\" on the Stack where the admission policies are installed.\n" +
			"For a Stack with windows and without a StackRollout, set the annotation yourself, to the revision in full.",
		Example: fmt.Sprintf("  %s rollout release network --revision main@sha1:…", invocation(s.Program)),
		Args:    arguments(cobra.ExactArgs(1)), ValidArgsFunction: s.completeNames(stacks()),
		PreRunE: func(cmd *cobra.Command, _ []string) error { return s.namesRevision(cmd, promotion{revision: revision}) },
	}
	cmd.RunE = s.onCluster(func(ctx context.Context, c *cluster, args []string) error {
		stack := &pulumiv1.Stack{}
		if err := c.read(ctx, c.key(args[0]), stack); err != nil {
			return err
		}
		key, named := waves.RolloutOf(stack)
		if !named {
			return failed(exitUsage, "Stack %q has no spec.rolloutRef: %s", stack.Name, hintWithoutRollout(stack))
		}
		rollout := &autov1alpha1.StackRollout{}
		if err := c.read(ctx, key, rollout); err != nil {
			return err
		}
		target, err := s.targetOf(ctx, rollout, revision, "release")
		if err != nil {
			return err
		}
		before := stack.DeepCopy()
		metav1.SetMetaDataAnnotation(&stack.ObjectMeta, pulumiv1.ReleaseRevisionAnnotation, target.Revision)
		if err := c.change(ctx, before, stack); err != nil {
			return err
		}
		s.log.Success("Stack %s may have %s", stack.Name, short(target.Revision))
		return nil
	})
	cmd.Flags().StringVar(&revision, "revision", "", "The revision that was looked at, in full.")
	return cmd
}

// hintWithoutRollout returns what to do about a Stack that has no StackRollout to take a revision from.
func hintWithoutRollout(stack *pulumiv1.Stack) string {
	if len(stack.Spec.Windows) == 0 {
		return "it gets each revision at once"
	}
	return fmt.Sprintf("to let a revision pass its windows, set the annotation %s on the Stack to that revision, in full", pulumiv1.ReleaseRevisionAnnotation)
}

func (o *promotion) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.revision, "revision", "", "The revision that was looked at, in full.")
	flags.StringVar(&o.reason, "reason", "", "Why, for example the number of a change request.")
	flags.DurationVar(&o.timeout, "timeout", time.Minute, "The longest time to wait until the Approval counts.")
}

// namesRevision returns an error unless the revision is named, or the user can be asked.
func (s *session) namesRevision(cmd *cobra.Command, options promotion) error {
	if options.revision == "" && !isTerminal(s.In) {
		return usage(cmd, errors.New("without a terminal, say which revision with --revision"))
	}
	return nil
}

// decideOnRevision creates an Approval of the revision that is the target, and waits until it counts.
func (s *session) decideOnRevision(
	ctx context.Context, c *cluster, rollout *autov1alpha1.StackRollout, decision autov1alpha1.ApprovalDecision, options promotion,
) error {
	target, err := s.targetOf(ctx, rollout, options.revision, string(decision))
	if err != nil {
		return err
	}
	by, err := c.whoAmI(ctx)
	if err != nil {
		return err
	}
	approval := &autov1alpha1.Approval{
		Namespace: c.namespace, GenerateName: rollout.Name + "-",
		Spec: autov1alpha1.ApprovalSpec{
			Rollout: rollout.Name, Revision: target.Revision, Wave: options.wave, Decision: decision, Reason: options.reason, By: by,
		},
	}
	if err := c.create(ctx, approval); err != nil {
		return err
	}
	s.log.Step("created Approval %s of %s by %s", approval.Name, short(target.Revision), print.Clean(by))
	if err := s.awaitAccepted(ctx, c, approval, options.timeout); err != nil {
		return err
	}
	s.log.Success("%s", short(conditions.GetMessage(approval, autov1alpha1.ApprovalAccepted)))
	return nil
}

// targetOf returns the target of the StackRollout, which is the revision that was looked at: the user named it, or says so now.
func (s *session) targetOf(ctx context.Context, rollout *autov1alpha1.StackRollout, revision, verb string) (*autov1alpha1.RolloutTarget, error) {
	target := rollout.Status.Target
	switch {
	case target == nil:
		return nil, failed(exitNotReady, "StackRollout %q has no revision yet", rollout.Name)
	case revision == "":
		s.printRollout(rollout)
		return target, s.confirm(ctx, fmt.Sprintf("%s %s?", verb, target.Revision), "nothing was decided")
	case !waves.IsNameOfTarget(revision, &rollout.Status):
		return nil, failed(exitNotReady, "StackRollout %q rolls out another revision by now: %s", rollout.Name, target.Revision)
	}
	return target, nil
}

// awaitAccepted waits until it is known whether the Approval counts, and returns an error if it does not.
func (s *session) awaitAccepted(ctx context.Context, c *cluster, approval *autov1alpha1.Approval, timeout time.Duration) error {
	key := client.ObjectKeyFromObject(approval)
	err := s.await(ctx, timeout, "Approval "+approval.Name, func(ctx context.Context) (progress, error) {
		err := c.read(ctx, key, approval)
		return progress{done: conditions.Has(approval, autov1alpha1.ApprovalAccepted), state: "waiting until the Approval counts"}, err
	})
	if err == nil && !conditions.IsTrue(approval, autov1alpha1.ApprovalAccepted) {
		err = failed(exitNotReady, "the Approval does not count: %s", conditions.GetMessage(approval, autov1alpha1.ApprovalAccepted))
	}
	return err
}

func (s *session) suspendRollout(use, short string, suspend bool) *cobra.Command {
	cmd := &cobra.Command{Use: use + " NAME", Short: short}
	s.onRollout(cmd, func(ctx context.Context, c *cluster, rollout *autov1alpha1.StackRollout) error {
		before := rollout.DeepCopy()
		rollout.Spec.Suspend = suspend
		if err := c.change(ctx, before, rollout); err != nil {
			return err
		}
		s.log.Success("StackRollout %s %s", rollout.Name, map[bool]string{true: "suspended", false: "resumed"}[suspend])
		return nil
	})
	return cmd
}
