// Package apiextensions has custom resources.
package apiextensions

import (
	"fmt"

	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"

	"github.com/stack-controller/stack-controller/tests/e2e/examples/kubernetes"
	metav1 "github.com/stack-controller/stack-controller/tests/e2e/examples/kubernetes/meta/v1"
)

// CustomResourceArgs are the fields of a custom resource. The name ApiVersion is the same as in the real SDK.
type CustomResourceArgs struct {
	ApiVersion  pulumi.StringInput //nolint:staticcheck // see above
	Kind        pulumi.StringInput
	Metadata    *metav1.ObjectMetaArgs
	OtherFields kubernetes.UntypedArgs
}

// CustomResource is a custom resource that was created.
type CustomResource struct {
	pulumi.CustomResourceState

	Metadata metav1.ObjectMetaOutput
}

// NewCustomResource creates a custom resource.
func NewCustomResource(ctx *pulumi.Context, name string, args *CustomResourceArgs, opts ...pulumi.ResourceOption) (*CustomResource, error) {
	inputs := pulumi.Map{"apiVersion": args.ApiVersion, "kind": args.Kind, "metadata": args.Metadata.Inputs()}
	for field, value := range args.OtherFields {
		input, ok := value.(pulumi.Input)
		if !ok {
			return nil, fmt.Errorf("the field %s is a %T, not an input", field, value)
		}
		inputs[field] = input
	}
	created := &CustomResource{Metadata: args.Metadata.Output()}
	return created, ctx.RegisterResource("kubernetes:custom", name, inputs, created, opts...)
}
