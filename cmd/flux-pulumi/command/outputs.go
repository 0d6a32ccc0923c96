package command

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/outputobject"
)

func (s *session) outputs() *cobra.Command {
	return group("outputs", "Let the controller write outputs", s.grantOutputs())
}

func (s *session) grantOutputs() *cobra.Command {
	namespace, account := "", ""
	cmd := &cobra.Command{
		Use: "grant NAME", Short: "Print the rights that the controller needs to write the objects of spec.outputs",
		Long: "Print a Role with the rights to write exactly the objects that spec.outputs of a Stack names, and its binding to the\n" +
			"controller. It changes nothing: apply what it prints.",
		Example: fmt.Sprintf("  %s outputs grant network | kubectl apply -f -", invocation(s.Program)),
	}
	s.onStack(cmd, func(_ context.Context, _ *cluster, stack *pulumiv1.Stack) error {
		if len(stack.Spec.Outputs) == 0 {
			return fmt.Errorf("the Stack %q has no spec.outputs", stack.Name)
		}
		controller := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}
		role, binding := outputobject.Grant(stack, outputobject.Names(stack), controller)
		printer := &printers.YAMLPrinter{}
		for _, object := range []runtime.Object{role, binding} {
			if err := printer.PrintObj(object, s.out); err != nil {
				return fmt.Errorf("print the rights: %w", err)
			}
		}
		return nil
	})
	cmd.Flags().StringVar(&namespace, "controller-namespace", "flux-system", "The namespace of stack-controller.")
	cmd.Flags().StringVar(&account, "controller-service-account", "stack-controller", "The ServiceAccount of stack-controller.")
	return cmd
}
