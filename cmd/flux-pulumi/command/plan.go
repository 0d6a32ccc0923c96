package command

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/print"
	"github.com/stack-controller/stack-controller/internal/controller/plans"
	"github.com/stack-controller/stack-controller/internal/file"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

// maxPlanText bounds the text of a plan that is shown, in bytes. An agent writes no more, see operation.maxPlainText.
const maxPlanText = 64 << 20

// planOptions are the flags of the commands that decide on plans.
type planOptions struct {
	waiting
	digest, reason string
}

func (s *session) plan() *cobra.Command {
	return group("plan", "See, approve and reject plans", s.showPlan(),
		s.decidePlan("approve", "Approve the plan of a Stack", autov1alpha1.ApprovalApprove),
		s.decidePlan("reject", "Reject the plan of a Stack", autov1alpha1.ApprovalReject))
}

func (s *session) showPlan() *cobra.Command {
	var diff bool
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Show the plan of a Stack",
		Long: "Show what the plan of a Stack would change, its digest, and who approved it. With --diff, it also shows the values, for which\n" +
			"you need permission to read the Secrets of the plan. Values that Pulumi knows as secret are not shown.",
	}
	s.onStack(cmd, func(ctx context.Context, c *cluster, stack *pulumiv1.Stack) error {
		return s.printPlan(ctx, c, stack, diff)
	})
	cmd.Flags().BoolVar(&diff, "diff", false, "Show old and new values.")
	return cmd
}

func (s *session) decidePlan(use, short string, decision autov1alpha1.ApprovalDecision) *cobra.Command {
	options := planOptions{}
	cmd := &cobra.Command{
		Use: use + " NAME", Short: short,
		Long: short + ": only the plan with the given digest, and not one that has replaced it. Without --digest, it shows the plan and asks\n" +
			"for confirmation. It creates an Approval, which has your name and cannot be changed.",
		Example: fmt.Sprintf("  %s plan %s network --digest sha256:… --reason CHG-42", invocation(s.Program), use),
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if options.digest == "" && !isTerminal(s.In) {
				return usage(cmd, errors.New("without a terminal, say which plan with --digest"))
			}
			return nil
		},
	}
	s.onStack(cmd, func(ctx context.Context, c *cluster, stack *pulumiv1.Stack) error {
		return s.decideOnPlan(ctx, c, stack, decision, options)
	})
	flags := cmd.Flags()
	flags.StringVar(&options.digest, "digest", "", "The digest of the plan that was looked at.")
	flags.StringVar(&options.reason, "reason", "", "Why, for example the number of a change request.")
	flags.DurationVar(&options.timeout, "timeout", time.Minute, "The longest time to wait until the Approval counts.")
	return cmd
}

// planOf reads the Update with the plan of the Stack. It returns an error if the Update is not the one that made this plan, because
// Approvals are of the digest in the status of the Stack.
func (c *cluster) planOf(ctx context.Context, stack *pulumiv1.Stack) (*autov1alpha1.Update, error) {
	plan, update := stack.Status.Plan, &autov1alpha1.Update{}
	if plan == nil {
		return nil, fmt.Errorf("the Stack %q has no plan", stack.Name)
	}
	if err := c.read(ctx, client.ObjectKey{Namespace: stack.Namespace, Name: plan.Name}, update); err != nil {
		return nil, err
	}
	if saved := update.Status.Plan; saved != nil && saved.Digest != plan.Digest {
		return nil, failed(exitNotReady, "Update %q does not have the plan of Stack %q: the digests differ; see whether the Stack makes another plan, "+
			"and if not, delete the Update", update.Name, stack.Name)
	}
	return update, nil
}

// printPlan shows the plan of a Stack.
func (s *session) printPlan(ctx context.Context, c *cluster, stack *pulumiv1.Stack, diff bool) error {
	update, err := c.planOf(ctx, stack)
	if err != nil {
		return err
	}
	var text *planText
	if diff {
		if text, err = c.planText(ctx, update); err != nil {
			return err
		}
	}
	details := print.NewTable(s.out, "", "")
	details.Headless()
	details.Write(planDetails(stack.Status.Plan, s.Now())...)
	s.out.Line("")
	if diff {
		return text.each(func(line string) { s.out.Line("%s", s.out.Paint(styleOfLine(line), line)) })
	}
	s.showChanges(update, "; --diff shows them")
	if saved := update.Status.Plan; saved != nil && saved.Unknowns > 0 {
		s.log.Warning("%d values are known only when the plan is carried out", saved.Unknowns)
	}
	return nil
}

// planDetails returns a row for each thing that is known about the plan, besides its changes.
func planDetails(plan *pulumiv1.PlanStatus, now time.Time) [][]print.Cell {
	rows := [][]print.Cell{
		{{Text: "plan"}, {Text: plan.Name}},
		{{Text: "digest"}, {Text: plan.Digest}},
		{{Text: "state"}, {Text: string(plan.State), Style: planStyle(plan.State)}},
		{{Text: "operation"}, {Text: fmt.Sprintf("%s (%s)", plan.Operation, plan.Summary)}},
		{{Text: "because"}, {Text: short(plan.Trigger)}},
	}
	if plan.Revision != "" {
		rows = append(rows, []print.Cell{{Text: "revision"}, {Text: short(plan.Revision)}})
	}
	if plan.ExpiresAt != nil && (plan.State == pulumiv1.PlanPending || plan.State == pulumiv1.PlanApproved) {
		rows = append(rows, []print.Cell{{Text: "expires in"}, {Text: since(now, plan.ExpiresAt.Time)}})
	}
	for _, approval := range plan.Approvals {
		text := strings.TrimSpace(approval.By + " " + approval.Reason)
		rows = append(rows, []print.Cell{{Text: "approved by"}, {Text: text, Style: print.Good}})
	}
	if plan.RejectedBy != "" {
		rows = append(rows, []print.Cell{{Text: "rejected by"}, {Text: plan.RejectedBy, Style: print.Bad}})
	}
	return rows
}

func planStyle(state pulumiv1.PlanState) print.Style {
	switch state {
	case pulumiv1.PlanApproved, pulumiv1.PlanApplied:
		return print.Good
	case pulumiv1.PlanRejected, pulumiv1.PlanFailed:
		return print.Bad
	}
	return print.Busy
}

// planText is the text of a plan, with old and new values.
type planText struct {
	// of names the plan in messages, and secret the Secret that has the text.
	of, secret string
	lines      *bufio.Reader
}

// planText reads the text of the plan that the Update has made, and checks that it is the text that was saved with it.
func (c *cluster) planText(ctx context.Context, update *autov1alpha1.Update) (*planText, error) {
	if update.Status.Plan == nil || len(update.Status.Plan.Secrets) == 0 {
		return nil, fmt.Errorf("update %q has no Secret with its plan", update.Name)
	}
	secrets := update.Status.Plan.Secrets
	secret := &corev1.Secret{}
	if err := c.read(ctx, c.key(secrets[len(secrets)-1]), secret); err != nil {
		return nil, err
	}
	if !update.Status.Plan.HasText(secret.Data[autov1alpha1.PlanTextKey]) {
		return nil, failed(exitNotReady, "Secret %q does not have the text that was saved with plan %q: somebody replaced it. Do not approve this plan; "+
			"delete Update %q, and the controller makes another plan", secret.Name, update.Name, update.Name)
	}
	zipped, err := gzip.NewReader(bytes.NewReader(secret.Data[autov1alpha1.PlanTextKey]))
	if err != nil {
		return nil, fmt.Errorf("read the plan in Secret %q: %w", secret.Name, err)
	}
	tooLong := failed(exitNotReady, "the text of plan %q has more than %d MiB, and the rest of it is not shown: do not approve what you have not seen",
		update.Name, maxPlanText>>20)
	return &planText{of: update.Name, secret: secret.Name, lines: bufio.NewReader(file.NewReader(zipped, maxPlanText, tooLong))}, nil
}

// each calls show with each line of the text, without escape sequences for terminals, because the text contains values from elsewhere.
func (t *planText) each(show func(line string)) error {
	for {
		line, err := t.lines.ReadString('\n')
		if line != "" {
			show(strings.TrimRight(plaintext.Strip(strings.ToValidUTF8(line, "\uFFFD")), " \r\n"))
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if _, tooLong := errors.AsType[failure](err); tooLong {
			return err
		}
		if err != nil {
			return fmt.Errorf("read plan %q in Secret %q: %w", t.of, t.secret, err)
		}
	}
}

// styleOfLine returns the style for a line of the text of a plan, which begins with the sign of the change.
func styleOfLine(line string) print.Style {
	switch trimmed := strings.TrimSpace(line); {
	case strings.HasPrefix(trimmed, "+"):
		return print.Good
	case strings.HasPrefix(trimmed, "-"):
		return print.Bad
	case strings.HasPrefix(trimmed, "~"):
		return print.Busy
	}
	return print.Plain
}

// decideOnPlan creates an Approval and waits until it counts.
func (s *session) decideOnPlan(
	ctx context.Context, c *cluster, stack *pulumiv1.Stack, decision autov1alpha1.ApprovalDecision, options planOptions,
) error {
	if err := s.confirmPlan(ctx, c, stack, decision, options.digest); err != nil {
		return err
	}
	by, err := c.whoAmI(ctx)
	if err != nil {
		return err
	}
	plan := stack.Status.Plan
	approval := &autov1alpha1.Approval{
		Namespace: c.namespace, GenerateName: stack.Name + "-",
		Spec: autov1alpha1.ApprovalSpec{
			Update: plan.Name, Digest: plan.Digest, Decision: decision, Reason: options.reason, By: by,
		},
	}
	if err := c.create(ctx, approval); err != nil {
		return err
	}
	s.log.Step("created Approval %s of plan %s by %s", approval.Name, plan.Name, print.Clean(by))
	if err := s.awaitAccepted(ctx, c, approval, options.timeout); err != nil {
		return err
	}
	return s.awaitDecision(ctx, c, stack, approval, options.timeout)
}

// awaitDecision waits until the Stack has recorded the Approval, and says what became of the plan: somebody else may have decided otherwise
// at the same time.
func (s *session) awaitDecision(ctx context.Context, c *cluster, stack *pulumiv1.Stack, approval *autov1alpha1.Approval, timeout time.Duration) error {
	decided := *stack.Status.Plan
	now := &pulumiv1.Stack{}
	err := s.await(ctx, timeout, "Stack "+stack.Name, func(ctx context.Context) (progress, error) {
		err := c.read(ctx, c.key(stack.Name), now)
		return progress{done: isRecorded(now.Status.Plan, approval), state: "waiting until the Stack records the decision"}, err
	})
	if err != nil {
		return err
	}
	plan := now.Status.Plan
	isSame := plan != nil && plan.UID == decided.UID && plan.Digest == decided.Digest
	switch {
	case approval.Spec.Decision == autov1alpha1.ApprovalReject && isSame && plans.IsMadeAgain(plan):
		s.log.Success("what is left of plan %s is rejected: the next plan needs an approval of its own", decided.Name)
	case approval.Spec.Decision == autov1alpha1.ApprovalReject && isSame && plan.State != pulumiv1.PlanRejected:
		return failed(exitNotReady, "plan %s was approved before, and is being carried out or was: it is %s; '%s cancel stack %s -n %s' stops an update that runs",
			plan.Name, plan.State, invocation(s.Program), stack.Name, stack.Namespace)
	case approval.Spec.Decision == autov1alpha1.ApprovalReject:
		s.log.Success("plan %s is rejected", decided.Name)
	case isSame && plan.RejectedBy != "":
		return failed(exitNotReady, "plan %s was rejected by %s at the same time, and is not carried out", plan.Name, print.Clean(plan.RejectedBy))
	default:
		s.log.Success("plan %s is approved (%s)", decided.Name, decided.Summary)
	}
	return nil
}

// isRecorded reports whether the Stack has recorded the Approval, or no longer has its plan.
func isRecorded(plan *pulumiv1.PlanStatus, approval *autov1alpha1.Approval) bool {
	switch {
	case plan == nil, plan.Name != approval.Spec.Update, plan.Digest != approval.Spec.Digest, plan.RejectedBy != "":
		return true
	case approval.Spec.Decision == autov1alpha1.ApprovalReject && plans.IsMadeAgain(plan):
		return false // the next plan must not take over the approvals of this one
	case plan.State != pulumiv1.PlanPending && plan.State != pulumiv1.PlanApproved:
		return true
	case approval.Spec.Decision == autov1alpha1.ApprovalReject:
		return false
	case plan.State == pulumiv1.PlanApproved: // The Stack records no further Approvals of a plan that is being carried out.
		return true
	}
	return slices.ContainsFunc(plan.Approvals, func(one pulumiv1.PlanApproval) bool { return one.By == approval.Spec.By })
}

// confirmPlan returns an error unless the plan of the Stack is the intended one: it has the digest, or it was shown and the user confirmed
// it.
func (s *session) confirmPlan(
	ctx context.Context, c *cluster, stack *pulumiv1.Stack, decision autov1alpha1.ApprovalDecision, digest string,
) error {
	if digest == "" {
		if err := s.printPlan(ctx, c, stack, false); err != nil {
			return err
		}
		return s.confirm(ctx, fmt.Sprintf("%s this plan?", decision), "nothing was decided")
	}
	_, err := c.planOf(ctx, stack)
	if err == nil && stack.Status.Plan.Digest != digest {
		err = failed(exitNotReady, "the plan of Stack %q is another one by now: %s; see '%s plan show %s'",
			stack.Name, stack.Status.Plan.Digest, invocation(s.Program), stack.Name)
	}
	return err
}

// whoAmI returns the name by which the API server knows the user.
func (c *cluster) whoAmI(ctx context.Context) (string, error) {
	review := &authenticationv1.SelfSubjectReview{}
	err := call(ctx, func(ctx context.Context) error { return c.client.Create(ctx, review) }, "ask who you are")
	return review.Status.UserInfo.Username, err
}
