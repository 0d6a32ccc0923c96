package command

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/print"
	"github.com/stack-controller/stack-controller/internal/steps"
	"github.com/stack-controller/stack-controller/internal/template"
	"github.com/stack-controller/stack-controller/internal/urn"
)

const (
	// exitChanges means that "diff --exit-code" found changes.
	exitChanges = 5
	// previewTTL is how long the Update of a preview is kept if it is not deleted earlier.
	previewTTL = time.Hour
)

// diffOptions are the flags of "diff".
type diffOptions struct {
	waiting
	source         string
	keep, exitCode bool
}

func (s *session) diff() *cobra.Command {
	options := diffOptions{}
	cmd := &cobra.Command{
		Use: "stack NAME", Short: "Show what an update of a Stack would change",
		Long: "Show which resources an update of a Stack would change, with the revision that its source has now or with that of\n" +
			"another source of the namespace, such as a GitRepository for a pull request. It creates an Update of type preview in\n" +
			"the Workspace of the Stack, and deletes it at the end. It also works for a suspended Stack, but not for one\n" +
			"that was never updated, or whose Workspace is removed after each update.",
		Example: fmt.Sprintf("  %[1]s diff stack network\n  %[1]s diff stack network --source GitRepository/pull-request-42", invocation(s.Program)),
	}
	s.onStack(cmd, func(ctx context.Context, c *cluster, stack *pulumiv1.Stack) error {
		return s.diffStack(ctx, c, stack, options)
	})
	flags := cmd.Flags()
	flags.DurationVar(&options.timeout, "timeout", defaultTimeout, "The longest time to wait.")
	flags.StringVar(&options.source, "source", "", "Compare with the revision of this Flux source, as KIND/NAME.")
	flags.BoolVar(&options.keep, "keep", false, "Keep the Update for an hour.")
	flags.BoolVar(&options.exitCode, "exit-code", false, fmt.Sprintf("Exit with %d when there are changes.", exitChanges))
	return group("diff", "Show what would change", cmd)
}

func (s *session) diffStack(ctx context.Context, c *cluster, stack *pulumiv1.Stack, options diffOptions) (err error) {
	preview, err := c.previewOf(ctx, stack, options.source)
	if err != nil {
		return err
	}
	if isEdited(stack) {
		s.log.Warning("the Stack %q was edited since its last update: the preview has the configuration and the environment that it had then", stack.Name)
	}
	s.log.Step("creating a preview of revision %s", short(preview.Spec.Source.Revision))
	if err := c.create(ctx, preview); err != nil {
		return err
	}
	if !options.keep {
		defer func() { err = errors.Join(err, c.remove(context.WithoutCancel(ctx), preview)) }()
	}
	err = s.await(ctx, options.timeout, "preview "+preview.Name, func(ctx context.Context) (progress, error) {
		if err := c.read(ctx, client.ObjectKeyFromObject(preview), preview); err != nil {
			return progress{}, err
		}
		now := progressOfUpdate(preview)
		now.done = preview.IsComplete()
		return now, nil
	})
	if err != nil {
		return err
	}
	if preview.HasFailed() {
		return failed(exitNotReady, "the preview failed: %s", short(preview.Status.Message))
	}
	return s.showDiff(preview, options.exitCode)
}

// isEdited reports whether the specification of the Stack is another one than in its last update. That it was suspended is an edit that does
// not matter.
func isEdited(stack *pulumiv1.Stack) bool {
	last := stack.Status.LastUpdate
	if last == nil {
		return false
	}
	edits := stack.Generation - last.Generation
	if stack.Spec.Suspend {
		edits--
	}
	return edits > 0
}

// previewOf returns an Update that previews what the next update of the Stack would do with the artifact of a source. Its options are those of
// the Stack, because the last Update may have had others: it may have corrected drift or carried out a request.
func (c *cluster) previewOf(ctx context.Context, stack *pulumiv1.Stack, from string) (*autov1alpha1.Update, error) {
	found, err := c.updatesOf(ctx, stack)
	if err != nil {
		return nil, err
	}
	last := slices.IndexFunc(found, func(update autov1alpha1.Update) bool {
		kind := update.Spec.Type
		return update.Spec.Source != nil && (kind == autov1alpha1.UpdateTypeUp || kind == autov1alpha1.UpdateTypePreview)
	})
	var ran *autov1alpha1.UpdateSource
	switch {
	case last >= 0:
		ran = found[last].Spec.Source
	case stack.Spec.FluxSource == nil || stack.Status.LastUpdate == nil: // there is no Workspace before the first one
		return nil, fmt.Errorf("the Stack %q has no Update to make a preview from: request an update, or set spec.approval or spec.preview to see what it would do", stack.Name)
	}
	// Nobody creates a Workspace for an Update that is not the Stack's. A user who may not read it is not told.
	if err := c.read(ctx, client.ObjectKeyFromObject(stack), &autov1alpha1.Workspace{}); apierrors.IsNotFound(err) {
		return nil, noWorkspace(stack)
	}
	source, err := c.artifactOf(ctx, stack, ran, from)
	if err != nil {
		return nil, err
	}
	preview := &autov1alpha1.Update{Spec: template.Options(stack)}
	preview.Spec.Type, preview.Spec.Source = autov1alpha1.UpdateTypePreview, source
	if preview, err = template.Update(preview, stack.Spec.UpdateTemplate); err != nil {
		return nil, fmt.Errorf("spec.updateTemplate of the Stack %q: %w", stack.Name, err)
	}
	// The controller of the Stack's shard knows its objects by their labels. Those that make an Update one of the Stack are not among them, nor those
	// by which Argo CD would take the Update for a part of an Application that is no longer in git, and delete it.
	labels := maps.Clone(stack.Labels)
	for _, label := range []string{pulumiv1.ComponentLabel, pulumiv1.StackNameLabel, "app.kubernetes.io/instance", "argocd.argoproj.io/instance"} {
		delete(labels, label)
	}
	preview.ObjectMeta = metav1.ObjectMeta{Namespace: stack.Namespace, GenerateName: stack.Name + "-preview-", Labels: labels}
	preview.Spec.Message, preview.Spec.TTLAfterCompleted = new("Preview with "+fieldOwner), &metav1.Duration{Duration: previewTTL}
	preview.Spec.ExpectNoChanges = nil
	if stack.Status.DeployedStack == stack.Spec.Stack {
		preview.Spec.RequireStack = new(true)
	}
	return preview, nil
}

// artifactOf returns what the preview runs: the current artifact of the named source, or of the Stack's own source.
func (c *cluster) artifactOf(
	ctx context.Context, stack *pulumiv1.Stack, last *autov1alpha1.UpdateSource, from string,
) (*autov1alpha1.UpdateSource, error) {
	source := c.sourceOf(stack)
	if source == nil || stack.Spec.FluxSource == nil {
		if from != "" {
			return nil, errors.New("--source is for Stacks with a Flux source")
		}
		return last, nil // the source of the last update: only the configuration and the resources may differ
	}
	if from != "" {
		kind, name, found := strings.Cut(from, "/")
		if !found || kind == "" || name == "" {
			return nil, failed(exitUsage, "--source is KIND/NAME, such as GitRepository/network")
		}
		source.SetGroupVersionKind(c.served(source.GroupVersionKind().GroupVersion().WithKind(kind)))
		source.SetName(name)
	}
	if err := c.read(ctx, client.ObjectKeyFromObject(source), source); err != nil {
		return nil, err
	}
	digest, _, _ := unstructured.NestedString(source.Object, "status", "artifact", "digest")
	revision, _, _ := unstructured.NestedString(source.Object, "status", "artifact", "revision")
	if digest == "" {
		return nil, fmt.Errorf("%s %q has no artifact", source.GetKind(), source.GetName())
	}
	return &autov1alpha1.UpdateSource{
		SourceRef: &meta.NamespacedObjectKindReference{
			APIVersion: source.GetAPIVersion(), Kind: source.GetKind(), Namespace: source.GetNamespace(), Name: source.GetName(),
		},
		Digest: digest, Revision: revision, Dir: stack.Spec.FluxSource.Dir,
	}, nil
}

// showDiff shows a table of the resources that would change.
func (s *session) showDiff(preview *autov1alpha1.Update, exitCode bool) error {
	if !steps.Change(preview.Status.ResourceChanges) {
		s.log.Success("nothing would change: %s", counts(preview.Status.ResourceChanges))
		return nil
	}
	s.showChanges(preview, "")
	s.log.Success("would change: %s", counts(preview.Status.ResourceChanges))
	if exitCode {
		return failure{error: errors.New("there are changes"), code: exitChanges}
	}
	return nil
}

// showChanges shows a table of the changes of an Update. It also shows how many changes are not in the table, followed by todo.
func (s *session) showChanges(update *autov1alpha1.Update, todo string) {
	var rows [][]print.Cell
	for i := range update.Status.Changes {
		rows = append(rows, changeRow(&update.Status.Changes[i]))
	}
	print.NewTable(s.out, "", "TYPE", "NAME", "CHANGE").Write(rows...)
	if more := update.Status.OmittedChanges; more > 0 {
		s.log.Warning("%d more are not listed%s", more, todo)
	}
}

// changeRow returns the row of the table for one resource.
func changeRow(change *autov1alpha1.ResourceChange) []print.Cell {
	sign, text := steps.Of(change.Operation).Sign, change.Operation
	if paths := change.Paths; len(paths) > 0 {
		text += ": " + strings.Join(paths, ", ")
	}
	if paths := change.ReplacePaths; len(paths) > 0 {
		text += " (because of " + strings.Join(paths, ", ") + ")"
	}
	return []print.Cell{{Text: sign, Style: styleOf(sign)}, {Text: urn.Type(change.URN)}, {Text: urn.Name(change.URN)}, {Text: short(text)}}
}

// styleOf returns the style for the sign of a change.
func styleOf(sign string) print.Style {
	switch sign[0] {
	case '+':
		return print.Good
	case '-':
		return print.Bad
	}
	return print.Busy
}
