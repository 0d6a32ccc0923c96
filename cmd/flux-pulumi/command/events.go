package command

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/print"
)

func (s *session) events() *cobra.Command {
	options, about := &getOptions{}, ""
	cmd := &cobra.Command{
		Use: "events", Short: "Show what happened to Stacks, Workspaces, Updates and Programs",
		Example: fmt.Sprintf("  %[1]s events --for stack/network\n  %[1]s events -A -w", invocation(s.Program)),
		Args:    arguments(cobra.NoArgs),
	}
	cmd.RunE = s.onCluster(func(ctx context.Context, c *cluster, _ []string) error {
		wanted, err := isAbout(about)
		if err != nil {
			return usage(cmd, err)
		}
		return (&getter{session: s, cluster: c, kind: events(), options: *options, wanted: wanted}).run(ctx, nil)
	})
	flags := cmd.Flags()
	flags.BoolVarP(&options.everywhere, "all-namespaces", "A", false, "Show those of all namespaces.")
	flags.BoolVarP(&options.watch, "watch", "w", false, "Go on and show each event.")
	flags.StringVar(&about, "for", "", "Show those of a Stack with its Workspace and Updates (stack/NAME), or of one other object (KIND/NAME).")
	_ = cmd.RegisterFlagCompletionFunc("for", s.completeAbout) // fails for a flag that does not exist
	return cmd
}

// completeAbout completes "stack/NAME".
func (s *session) completeAbout(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	const prefix = "stack/"
	names, directive := s.completeNames(stacks())(cmd, nil, strings.TrimPrefix(begun, prefix))
	for i := range names {
		names[i] = prefix + names[i]
	}
	return names, directive
}

func events() kind {
	return kind{
		name: "event", plural: "events", when: func(object client.Object) time.Time { return seen(object.(*corev1.Event)) },
		newList: func() client.ObjectList { return &corev1.EventList{} },
		columns: []column{
			{heading: "LAST SEEN", cell: styled(func(event *corev1.Event, now time.Time) print.Cell {
				return print.Cell{Text: since(seen(event), now)}
			})},
			{heading: "TYPE", cell: styled(func(event *corev1.Event, _ time.Time) print.Cell {
				cell := print.Cell{Text: event.Type}
				if cell.Text != corev1.EventTypeNormal {
					cell.Style = print.Bad
				}
				return cell
			})},
			{heading: "REASON", cell: text(func(event *corev1.Event) string { return event.Reason })},
			{heading: "OBJECT", cell: text(func(event *corev1.Event) string {
				return strings.ToLower(event.InvolvedObject.Kind) + "/" + event.InvolvedObject.Name
			})},
			{heading: "MESSAGE", cell: text(func(event *corev1.Event) string { return short(event.Message) })},
		},
	}
}

// seen returns when the event happened last.
func seen(event *corev1.Event) time.Time {
	switch {
	case event.Series != nil:
		return event.Series.LastObservedTime.Time
	case !event.LastTimestamp.IsZero():
		return event.LastTimestamp.Time
	case !event.EventTime.IsZero():
		return event.EventTime.Time
	}
	return event.CreationTimestamp.Time
}

// isAbout returns a function that reports whether an event is about the object of the flag --for; without the flag, whether the event is
// about any of our kinds.
func isAbout(about string) (func(client.Object) bool, error) {
	ours := func(object client.Object) bool {
		group, _, _ := strings.Cut(object.(*corev1.Event).InvolvedObject.APIVersion, "/")
		return group == pulumiv1.GroupVersion.Group || group == autov1alpha1.GroupVersion.Group
	}
	if about == "" {
		return ours, nil
	}
	kind, name, found := strings.Cut(about, "/")
	if !found || kind == "" || name == "" {
		return nil, errors.New("--for is KIND/NAME, such as stack/network")
	}
	isStack := strings.EqualFold(kind, pulumiv1.StackKind)
	// The name of an Update of a Stack is the name of the Stack and a hash.
	update := regexp.MustCompile("^" + regexp.QuoteMeta(name) + "-[0-9a-f]{10}$")
	return func(object client.Object) bool {
		of := object.(*corev1.Event).InvolvedObject
		switch {
		case !ours(object):
			return false
		case isStack && of.Kind == autov1alpha1.UpdateKind:
			return update.MatchString(of.Name)
		case isStack:
			return of.Name == name && (of.Kind == pulumiv1.StackKind || of.Kind == autov1alpha1.WorkspaceKind)
		}
		return strings.EqualFold(of.Kind, kind) && of.Name == name
	}, nil
}
