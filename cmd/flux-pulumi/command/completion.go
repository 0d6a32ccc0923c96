package command

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

type completion = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective)

// completeNames completes the first argument to the name of an object of the kind. Without a cluster, it completes nothing.
func (s *session) completeNames(kind kind) completion {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return s.completeFlag(kind)(cmd, args, begun)
	}
}

// completeFlag completes the value of a flag to the name of an object of the kind.
func (s *session) completeFlag(kind kind) completion {
	return func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		c, err := s.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return c.complete(cmd.Context(), kind.newList(), begun, client.InNamespace(c.namespace))
	}
}

func (s *session) completeNamespaces(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	c, err := s.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return c.complete(cmd.Context(), &corev1.NamespaceList{}, begun)
}

// complete lists the names of the objects that begin with begun.
func (c *cluster) complete(
	ctx context.Context, list client.ObjectList, begun string, options ...client.ListOption,
) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	// The first call asks which kinds there are, which has no context.
	if err := interruptible(ctx, func() error { return c.list(ctx, list, options...) }); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	_ = apimeta.EachListItem(list, func(object runtime.Object) error { // fails for what is not a list
		if name := object.(client.Object).GetName(); strings.HasPrefix(name, begun) {
			names = append(names, name)
		}
		return nil
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}
