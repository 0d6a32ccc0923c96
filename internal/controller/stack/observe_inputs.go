package stack

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/controller/hashkey"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/stackoutputs"
)

// inputsView is what is known of the values of spec.inputs.
type inputsView struct {
	// versions identify the versions of the objects that have the values; empty when they were not looked up.
	versions string
	// values identify the values; none when they were not read, because no version is another one, or could not be.
	values []inputs.ValueID
}

// comparedInputs is what was read for some versions, so that they are read once.
type comparedInputs struct {
	uid        types.UID
	generation int64
	view       inputsView
}

// checkInputs returns an error for the user if spec.inputs can never be used as it is.
func checkInputs(stack *pulumiv1.Stack) error {
	if template := stack.Spec.WorkspaceTemplate; template != nil && template.Spec != nil {
		for i := range template.Spec.Stacks {
			if len(template.Spec.Stacks[i].Inputs) > 0 {
				// They would be neither dependencies, nor compared.
				return errors.New("spec.workspaceTemplate: a stack has inputs: list them in spec.inputs")
			}
		}
	}
	for i := range stack.Spec.Inputs {
		if from := stack.Spec.Inputs[i].Stack; from != nil {
			if err := stackoutputs.CheckPath(from.Path); err != nil {
				return fmt.Errorf("spec.inputs: key %q: %w", stack.Spec.Inputs[i].Key, err)
			}
		}
	}
	return nil
}

// hasDefaults reports whether all inputs from the Stack with the name have a default.
func hasDefaults(stack *pulumiv1.Stack, name types.NamespacedName) bool {
	for i := range stack.Spec.Inputs {
		input := &stack.Spec.Inputs[i]
		if input.Stack != nil && input.Default == nil && input.Stack.Of(stack.Namespace) == name {
			return false
		}
	}
	return true
}

// checkConsent returns the first input that is an output of a Stack in another namespace which does not share it.
func (r *Reconciler) checkConsent(ctx context.Context, stack *pulumiv1.Stack) (*dependencyProblem, error) {
	for i := range stack.Spec.Inputs {
		from := stack.Spec.Inputs[i].Stack
		if from == nil || from.Of(stack.Namespace).Namespace == stack.Namespace {
			continue
		}
		giver, err := r.getStack(ctx, from.Of(stack.Namespace))
		if err != nil && !apierrors.IsForbidden(err) {
			return nil, err
		}
		if err := inputs.Denied(giver, stack.Namespace, from, false); err != nil {
			return &dependencyProblem{reason: pulumiv1.AccessDeniedReason, foreign: true,
				message: fmt.Sprintf("input %q: %s", stack.Spec.Inputs[i].Key, err)}, nil
		}
	}
	return nil, nil
}

// observeInputs reads the values of spec.inputs if one may be another than the last update had, or the plan. It does not when no update can
// start, or when one starts anyway: values that it cannot read are no reason for an update. What is missing is shown by the update that needs
// it.
func (r *Reconciler) observeInputs(ctx context.Context, o *observation) error {
	list := o.stack.Spec.Inputs
	if len(list) == 0 || o.stack.Spec.Suspend || !o.stack.DeletionTimestamp.IsZero() || o.isUpdating() || o.dependency != nil || o.desired == nil {
		return nil
	}
	versions, err := r.References.Versions(ctx, references.OfInputs(o.stack.Namespace, list))
	if err != nil {
		return err
	}
	for _, name := range autov1alpha1.StacksOf(o.stack.Namespace, list) {
		giver, err := r.getStack(ctx, name)
		if err != nil && !apierrors.IsForbidden(err) {
			return err
		}
		versions = append(versions, inputs.VersionOfOutputs(o.stack.Namespace, name, giver))
	}
	o.inputs.versions = references.Digest(versions)
	if !o.hasNewVersions(versions) {
		return nil
	}
	self := client.ObjectKeyFromObject(o.stack)
	known, _ := r.comparedInputs.Load(self)
	if before, ok := known.(comparedInputs); ok && before.uid == o.stack.UID && before.generation == o.stack.Generation &&
		before.view.versions == o.inputs.versions {
		o.inputs = before.view
		return nil
	}
	values, unread, err := r.readInputs(ctx, o, versions)
	if err != nil {
		return err
	}
	o.inputs.values = values
	if unread != nil && !inputs.HaveVersion(o.stack.Namespace, unread, versions) {
		// When the value can be read, the versions are the same, and nothing wakes the Stack.
		o.unheard = true
		return nil
	}
	r.comparedInputs.Store(self, comparedInputs{o.stack.UID, o.stack.Generation, o.inputs})
	return nil
}

// hasNewVersions reports whether one of the versions is not recorded for the last update, or for the plan, or nothing is.
func (o *observation) hasNewVersions(versions []references.Version) bool {
	last, plan := o.stack.Status.LastUpdate, o.stack.Status.Plan
	isNew := func(recorded *pulumiv1.InputsWithoutCommit) bool {
		return recorded.InputValuesDigest != "" && len(references.NotIn(versions, recorded.InputVersionsDigest)) > 0
	}
	return last != nil && isNew(&last.InputsWithoutCommit) || plan != nil && isNew(&plan.InputsWithoutCommit) || hasUnknownInputs(o.stack)
}

// hasUnknownInputs reports whether nothing is recorded for the last update, which succeeded, or for the plan: the controller ended before it
// could. Then the values are read, and count as others than those that nobody knows.
func hasUnknownInputs(stack *pulumiv1.Stack) bool {
	last, plan := stack.Status.LastUpdate, stack.Status.Plan
	return last != nil && last.State == pulumiv1.StackUpdateSucceeded && last.InputValuesDigest == "" || plan != nil && plan.InputValuesDigest == ""
}

// readInputs returns what identifies the values, none if that of the input unread is missing, may not be used, or is no value. It does not read
// again what has the version that the last update had.
func (r *Reconciler) readInputs(
	ctx context.Context, o *observation, versions []references.Version,
) (values []inputs.ValueID, unread *autov1alpha1.Input, err error) {
	reader := &inputs.Reader{APIReader: r.APIReader, Namespace: o.stack.Namespace, Stacks: r.getStack, Scope: r.Scope, Stored: r.StoredOutputs}
	same := sameInputs(o.stack, versions)
	var key []byte
	for i := range o.stack.Spec.Inputs {
		input := &o.stack.Spec.Inputs[i]
		if id, known := same[input.Key]; known {
			values = append(values, id)
			continue
		}
		item, err := reader.Item(ctx, input)
		_, isMissing := errors.AsType[*inputs.MissingError](err)
		_, isDenied := errors.AsType[*inputs.DeniedError](err)
		_, isInvalid := errors.AsType[*inputs.InvalidError](err)
		switch {
		case isMissing, isDenied, isInvalid:
			return nil, input, nil
		case err != nil:
			return nil, nil, err
		}
		if key == nil {
			// Without a key, all values count as others: nobody knows what they were.
			if key, err = (hashkey.Keys{APIReader: r.APIReader}).Of(ctx, o.desired.workspace); err != nil {
				return nil, nil, err
			}
		}
		values = append(values, inputs.ValueIDs(key, []*agentpb.ConfigItem{item})...)
	}
	return values, nil, nil
}

// sameInputs returns what identifies the values that are those of the last update, because the versions of their objects are, by the names
// of the inputs. What is not watched counts as the same. A plan may have seen more than the last update, so with one, none are known.
func sameInputs(stack *pulumiv1.Stack, versions []references.Version) map[string]inputs.ValueID {
	last := stack.Status.LastUpdate
	if last == nil || last.Generation != stack.Generation || stack.Status.Plan != nil {
		return nil
	}
	return inputs.Others(stack.Namespace, stack.Spec.Inputs, last.InputValuesDigest, references.NotIn(versions, last.InputVersionsDigest))
}
