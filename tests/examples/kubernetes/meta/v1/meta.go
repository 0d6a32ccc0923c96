// Package v1 has the metadata of objects.
package v1

import "github.com/pulumi/pulumi/sdk/v3/go/pulumi"

// ObjectMetaArgs are the metadata that a program sets.
type ObjectMetaArgs struct {
	Name      pulumi.StringPtrInput
	Namespace pulumi.StringPtrInput
}

// Inputs are the fields as they are sent to the engine.
func (a *ObjectMetaArgs) Inputs() pulumi.Map {
	return pulumi.Map{"name": a.Name, "namespace": a.Namespace}
}

// Output is what a program can read of the metadata.
func (a *ObjectMetaArgs) Output() ObjectMetaOutput {
	return ObjectMetaOutput{name: a.Name.ToStringPtrOutput()}
}

// ObjectMetaOutput are the metadata of an object that was created.
type ObjectMetaOutput struct{ name pulumi.StringPtrOutput }

// Name is that of the object.
func (o ObjectMetaOutput) Name() pulumi.StringPtrOutput { return o.name }
