package stack

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/artifact"
	"github.com/stack-controller/stack-controller/internal/template"
)

// desired is what a Stack's spec asks for, before its source is known.
type desired struct {
	workspace *autov1alpha1.Workspace
	// dir is the directory of the program in the artifact.
	dir string
	// selection is the part of the artifact whose changes run an update; nil is all of it.
	selection *artifact.Selection
}

// desire translates the spec. Its error is for the user: only an edit of the spec can mend it.
func desire(stack *pulumiv1.Stack) (*desired, error) {
	if stack.Spec.Stack == "" {
		return nil, errors.New("spec.stack must not be empty")
	}
	env, err := environmentOf(stack)
	if err != nil {
		return nil, err
	}
	config, err := configOf(stack)
	if err != nil {
		return nil, err
	}
	create := !stack.Spec.UseLocalStackOnly
	item := autov1alpha1.WorkspaceStack{
		Name:        stack.Spec.Stack,
		Create:      &create,
		Config:      config,
		Environment: stack.Spec.Environment,
	}
	if stack.Spec.SecretsProvider != "" {
		item.SecretsProvider = &stack.Spec.SecretsProvider
	}
	workspace := &autov1alpha1.Workspace{
		ObjectMeta: metav1.ObjectMeta{
			Name:            stack.Name,
			Namespace:       stack.Namespace,
			Labels:          labelsOf(stack),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(stack, pulumiv1.GroupVersion.WithKind(pulumiv1.StackKind))},
		},
		Spec: autov1alpha1.WorkspaceSpec{
			ServiceAccountName: stack.Spec.ServiceAccountName,
			Env:                env,
			Stacks:             []autov1alpha1.WorkspaceStack{item},
		},
	}
	workspace, err = template.Workspace(workspace, stack.Spec.WorkspaceTemplate)
	if err != nil {
		return nil, fmt.Errorf("spec.workspaceTemplate: %w", err)
	}
	// After the template, so that it cannot take them away.
	workspace.Spec.EnvFrom = append(workspace.Spec.EnvFrom, environmentSourcesOf(stack)...)
	d := &desired{workspace: workspace, dir: dirOf(stack)}
	if d.selection, err = selectionOf(stack, d.dir); err != nil {
		return nil, fmt.Errorf("spec.sourcePaths: %w", err)
	}
	return d, nil
}

// dirOf returns the directory of the program in the source.
func dirOf(stack *pulumiv1.Stack) string {
	switch {
	case stack.HasGitSource():
		return stack.Spec.RepoDir
	case stack.Spec.FluxSource != nil:
		return stack.Spec.FluxSource.Dir
	}
	return ""
}

// selectionOf returns what the stack is made of. A Program is one file, and a Stack that asks for an update with every revision
// is made of everything.
func selectionOf(stack *pulumiv1.Stack, dir string) (*artifact.Selection, error) {
	selection, err := artifact.NewSelection(dir, stack.Spec.SourcePaths)
	if stack.Spec.ProgramRef != nil || stack.Spec.UpdateOn == pulumiv1.UpdateOnRevision {
		return nil, err
	}
	return selection, err
}

// hasSource tells whether the program comes from a source, and not with the Workspace.
func hasSource(stack *pulumiv1.Stack) bool {
	return stack.HasGitSource() || stack.Spec.FluxSource != nil || stack.Spec.ProgramRef != nil
}

// labelsOf gives the Stack's objects its labels, so that a label selector finds them together with it, and the ones by
// which they are known.
func labelsOf(stack *pulumiv1.Stack) map[string]string {
	labels := maps.Clone(stack.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[pulumiv1.ComponentLabel] = pulumiv1.ComponentStack
	labels[pulumiv1.StackNameLabel] = stack.Name
	return labels
}

// environmentOf translates backend, accessTokenSecret and envRefs, in a stable order. A later entry wins.
func environmentOf(stack *pulumiv1.Stack) ([]corev1.EnvVar, error) {
	var env []corev1.EnvVar
	if stack.Spec.Backend != "" {
		env = append(env, corev1.EnvVar{Name: "PULUMI_BACKEND_URL", Value: stack.Spec.Backend})
	}
	if name := stack.Spec.AccessTokenSecret; name != "" {
		env = append(env, secretVariable("PULUMI_ACCESS_TOKEN", name, "accessToken"))
	}
	for _, name := range slices.Sorted(maps.Keys(stack.Spec.EnvRefs)) {
		ref := stack.Spec.EnvRefs[name]
		variable, err := variableOf(stack, name, &ref)
		if err != nil {
			return nil, fmt.Errorf("spec.envRefs[%s]: %w", name, err)
		}
		env = slices.DeleteFunc(env, func(present corev1.EnvVar) bool { return present.Name == name })
		env = append(env, variable)
	}
	return env, nil
}

func variableOf(stack *pulumiv1.Stack, name string, ref *pulumiv1.ResourceRef) (corev1.EnvVar, error) {
	if err := checkRef(stack, ref); err != nil {
		return corev1.EnvVar{}, err
	}
	if ref.Type == pulumiv1.ResourceRefLiteral {
		return corev1.EnvVar{Name: name, Value: ref.LiteralRef.Value}, nil
	}
	return secretVariable(name, ref.SecretRef.Name, ref.SecretRef.Key), nil
}

func secretVariable(name, secret, key string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: secret}, Key: key,
	}}}
}

// checkRef refuses references that name nothing, or something that a tenant must not reach: Env and FS meant the
// environment and the files of the controller itself.
func checkRef(stack *pulumiv1.Stack, ref *pulumiv1.ResourceRef) error {
	switch ref.Type {
	case pulumiv1.ResourceRefLiteral:
		if ref.LiteralRef == nil {
			return fmt.Errorf("type Literal needs the field literal")
		}
	case pulumiv1.ResourceRefSecret:
		if ref.SecretRef == nil {
			return fmt.Errorf("type Secret needs the field secret")
		}
		if namespace := ref.SecretRef.Namespace; namespace != "" && namespace != stack.Namespace {
			return fmt.Errorf("secret %s/%s is in another namespace, which is not allowed", namespace, ref.SecretRef.Name)
		}
	case pulumiv1.ResourceRefEnv, pulumiv1.ResourceRefFS:
		return fmt.Errorf("type %s is not supported any more: it would expose the controller's own environment; use Secret or Literal", ref.Type)
	default:
		return fmt.Errorf("unknown type %q, known are Literal and Secret", ref.Type)
	}
	return nil
}

// environmentSourcesOf translates the deprecated envs and envSecrets.
func environmentSourcesOf(stack *pulumiv1.Stack) []corev1.EnvFromSource {
	var sources []corev1.EnvFromSource
	for _, name := range stack.Spec.Envs {
		sources = append(sources, corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}})
	}
	for _, name := range stack.Spec.SecretEnvs {
		sources = append(sources, corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}})
	}
	return sources
}
