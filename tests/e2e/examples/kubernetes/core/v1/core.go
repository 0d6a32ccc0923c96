// Package v1 has Secrets.
package v1

import (
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"

	metav1 "github.com/stack-controller/stack-controller/tests/e2e/examples/kubernetes/meta/v1"
)

// SecretArgs are the fields of a Secret.
type SecretArgs struct {
	Metadata   *metav1.ObjectMetaArgs
	StringData pulumi.StringMapInput
}

// Secret is a Secret that was created.
type Secret struct {
	pulumi.CustomResourceState

	Metadata metav1.ObjectMetaOutput
}

// NewSecret creates a Secret.
func NewSecret(ctx *pulumi.Context, name string, args *SecretArgs, opts ...pulumi.ResourceOption) (*Secret, error) {
	secret := &Secret{Metadata: args.Metadata.Output()}
	inputs := pulumi.Map{
		"apiVersion": pulumi.String("v1"), "kind": pulumi.String("Secret"), "metadata": args.Metadata.Inputs(), "stringData": args.StringData,
	}
	return secret, ctx.RegisterResource("kubernetes:core/v1:Secret", name, inputs, secret, opts...)
}
