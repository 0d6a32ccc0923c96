package stack

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
	"github.com/stack-controller/stack-controller/internal/template"
	"github.com/stack-controller/stack-controller/internal/windows"
)

// desired is what a Stack's spec asks for, before its source is known.
type desired struct {
	workspace *autov1alpha1.Workspace
	// dir is the directory of the program in the artifact.
	dir string
	// selection is the part of the artifact whose changes run an update; nil is all of it.
	selection *artifact.Selection
}

// checkUpdateType refuses a type of Updates that the Stack would have to ignore: it decides itself when to run which operation.
func checkUpdateType(stack *pulumiv1.Stack) error {
	if stack.Spec.UpdateTemplate == nil || stack.Spec.UpdateTemplate.Spec == nil {
		return nil
	}
	switch stack.Spec.UpdateTemplate.Spec.Type {
	case "", autov1alpha1.UpdateTypeUp, autov1alpha1.UpdateTypePreview:
		return nil
	}
	return errors.New("spec.updateTemplate.spec.type: a Stack can have its Updates be up or preview only; make Updates of other types yourself")
}

// desire translates the spec into the Workspace. The options of Updates come from template.Options, which updateSpec uses. The error is for the user: only an edit of the spec can fix it.
func desire(stack *pulumiv1.Stack) (*desired, error) {
	if stack.Spec.Stack == "" {
		return nil, errors.New("spec.stack must not be empty")
	}
	if stack.Spec.RolloutRef != nil && stack.Spec.FluxSource == nil && stack.Spec.ProgramRef == nil {
		return nil, errors.New("spec.rolloutRef needs spec.fluxSource or spec.programRef: a StackRollout brings revisions of a source that several Stacks name")
	}
	if err := windows.Check(stack.Spec.Windows); err != nil {
		return nil, fmt.Errorf("spec.windows: %w", err)
	}
	if err := errors.Join(checkOutputs(stack), checkInputs(stack), checkUpdateType(stack)); err != nil {
		return nil, err
	}
	env, files, err := environmentOf(stack)
	if err != nil {
		return nil, err
	}
	config, err := configOf(stack)
	if err != nil {
		return nil, err
	}
	item := autov1alpha1.WorkspaceStack{
		Name:        stack.Spec.Stack,
		Create:      new(!stack.Spec.UseLocalStackOnly),
		Config:      config,
		Inputs:      stack.Spec.Inputs,
		Environment: stack.Spec.Environment,
	}
	if stack.Spec.SecretsProvider != "" {
		item.SecretsProvider = &stack.Spec.SecretsProvider
	}
	workspace := &autov1alpha1.Workspace{
		Name:            stack.Name,
		Namespace:       stack.Namespace,
		Labels:          labelsOf(stack),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(stack, pulumiv1.GroupVersion.WithKind(pulumiv1.StackKind))},
		Spec: autov1alpha1.WorkspaceSpec{
			ServiceAccountName: stack.Spec.ServiceAccountName,
			IdleTimeout:        stack.Spec.WorkspaceIdleTimeout,
			Env:                env,
			EnvFiles:           files,
			PulumiCloud:        stack.Spec.PulumiCloud.DeepCopy(),
			Stacks:             []autov1alpha1.WorkspaceStack{item},
		},
	}
	if workspace, err = template.Workspace(workspace, stack.Spec.WorkspaceTemplate); err != nil {
		return nil, fmt.Errorf("spec.workspaceTemplate: %w", err)
	}
	if err := workspace.CheckPulumiCloud(); err != nil {
		return nil, fmt.Errorf("spec.%w", err)
	}
	if stack.Spec.Approval != nil {
		metav1.SetMetaDataAnnotation(&workspace.ObjectMeta, pulumiv1.ApprovalRequiredAnnotation, "true")
	}
	// The deprecated envs and envSecrets are added after the template, so that the template cannot remove them.
	for _, name := range stack.Spec.Envs {
		from := corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{Name: name}}
		workspace.Spec.EnvFrom = append(workspace.Spec.EnvFrom, from)
	}
	for _, name := range stack.Spec.SecretEnvs {
		from := corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{Name: name}}
		workspace.Spec.EnvFrom = append(workspace.Spec.EnvFrom, from)
	}
	d := &desired{workspace: workspace, dir: dirOf(stack)}
	if d.selection, err = artifact.NewSelection(d.dir, stack.Spec.SourcePaths); err != nil {
		return nil, fmt.Errorf("spec.sourcePaths: %w", err)
	}
	if usesWholeArtifact(stack) {
		d.selection = nil
	}
	return d, nil
}

// desire adds the defaults of the controller's flags where the spec says nothing. The Workspace contains them, so that users see them there
// and an earlier default does not stay.
func (r *Reconciler) desire(stack *pulumiv1.Stack) (*desired, error) {
	d, err := desire(stack)
	if err == nil && stack.Spec.PulumiCloud != nil && !r.Pods {
		return nil, errors.New("spec.pulumiCloud.oidc needs the token of a ServiceAccount, which only a pod has, and the operations of this controller run in " +
			"processes: use spec.envRefs for an access token, or start the controller with --workspace-runtime=pod")
	}
	if err == nil {
		// The labels are set after the template: this controller would not see a Workspace of another shard.
		d.workspace.Labels = r.Shard.Follow(d.workspace.Labels, stack)
	}
	if err == nil && d.workspace.Spec.ServiceAccountName == "" {
		d.workspace.Spec.ServiceAccountName = r.DefaultServiceAccount
	}
	return d, err
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

// hasSource reports whether the program comes from a source, and not with the Workspace.
func hasSource(stack *pulumiv1.Stack) bool {
	return stack.HasGitSource() || stack.Spec.FluxSource != nil || stack.Spec.ProgramRef != nil
}

// labelsOf returns the labels of the objects that are created for the Stack: the labels of the Stack, so that a label selector finds all of
// them together, and the labels by which the controller knows these objects.
func labelsOf(stack *pulumiv1.Stack) map[string]string {
	labels := map[string]string{}
	maps.Copy(labels, stack.Labels)
	labels[pulumiv1.ComponentLabel] = pulumiv1.ComponentStack
	labels[pulumiv1.StackNameLabel] = stack.Name
	return labels
}

// The variables that spec.backend and spec.accessTokenSecret set.
const (
	backendVariable     = "PULUMI_BACKEND_URL"
	accessTokenVariable = "PULUMI_ACCESS_TOKEN"
)

// environmentOf translates backend, accessTokenSecret and envRefs, in a stable order. A variable of envRefs wins.
func environmentOf(stack *pulumiv1.Stack) (env []corev1.EnvVar, files []autov1alpha1.EnvFile, err error) {
	if _, replaced := stack.Spec.EnvRefs[backendVariable]; stack.Spec.Backend != "" && !replaced {
		env = append(env, corev1.EnvVar{Name: backendVariable, Value: stack.Spec.Backend})
	}
	if _, replaced := stack.Spec.EnvRefs[accessTokenVariable]; stack.Spec.AccessTokenSecret != "" && !replaced {
		env = append(env, secretVariable(accessTokenVariable, stack.Spec.AccessTokenSecret, "accessToken"))
	}
	for _, name := range slices.Sorted(maps.Keys(stack.Spec.EnvRefs)) {
		ref := stack.Spec.EnvRefs[name]
		if err := checkRef(stack, &ref); err != nil {
			return nil, nil, fmt.Errorf("spec.envRefs[%s]: %w", name, err)
		}
		switch ref.Type {
		case pulumiv1.ResourceRefLiteral:
			env = append(env, corev1.EnvVar{Name: name, Value: ref.LiteralRef.Value})
		case pulumiv1.ResourceRefFile:
			files = append(files, autov1alpha1.EnvFile{Name: name, Path: ref.File.Path})
		default:
			env = append(env, secretVariable(name, ref.SecretRef.Name, ref.SecretRef.Key))
		}
	}
	return env, files, nil
}

func secretVariable(name, secret, key string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
		Name: secret, Key: key,
	}}}
}

// checkRef rejects a reference that names nothing, or something that a tenant must not reach: Env and FS meant the environment and the
// files of the controller itself.
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
	case pulumiv1.ResourceRefFile:
		if ref.File == nil {
			return fmt.Errorf("type File needs the field file")
		}
		return autov1alpha1.CheckEnvFile(ref.File.Path)
	case pulumiv1.ResourceRefEnv, pulumiv1.ResourceRefFS:
		return fmt.Errorf("type %s is no longer supported: it would expose the controller's own environment; use Secret or Literal",
			ref.Type)
	default:
		return fmt.Errorf("unknown type %.64q, known are Literal, Secret and File", ref.Type)
	}
	return nil
}

// configOf translates config, configRef, secrets and secretsRef, each sorted by key. A key that is in two of them has no defined value:
// configOf returns an error that names both fields.
func configOf(stack *pulumiv1.Stack) ([]autov1alpha1.ConfigItem, error) {
	c := &config{place: map[string]string{}}
	for _, err := range []error{
		addConfig(c, "config", stack.Spec.Config, func(value apiextensionsv1.JSON) (autov1alpha1.ConfigItem, error) {
			return autov1alpha1.ConfigItem{Value: &value}, nil
		}),
		addConfig(c, "configRef", stack.Spec.ConfigRef, func(ref pulumiv1.ConfigMapRef) (autov1alpha1.ConfigItem, error) {
			from := &autov1alpha1.KeyReference{Name: ref.Name, Key: ref.Key}
			return autov1alpha1.ConfigItem{ValueFrom: &autov1alpha1.ConfigValueFrom{ConfigMapKeyRef: from, JSON: ref.JSON}}, nil
		}),
		addConfig(c, "secrets", stack.Spec.Secrets, secretText),
		addConfig(c, "secretsRef", stack.Spec.SecretRefs, func(ref pulumiv1.ResourceRef) (autov1alpha1.ConfigItem, error) {
			if err := checkRef(stack, &ref); err != nil {
				return autov1alpha1.ConfigItem{}, err
			}
			switch ref.Type {
			case pulumiv1.ResourceRefLiteral:
				return secretText(ref.LiteralRef.Value)
			case pulumiv1.ResourceRefFile:
				return autov1alpha1.ConfigItem{}, errors.New("type File is for environment variables: use it in spec.envRefs")
			}
			from := &autov1alpha1.KeyReference{Name: ref.SecretRef.Name, Key: ref.SecretRef.Key}
			return autov1alpha1.ConfigItem{Secret: new(true), ValueFrom: &autov1alpha1.ConfigValueFrom{SecretKeyRef: from}}, nil
		}),
	} {
		if err != nil {
			return nil, err
		}
	}
	for i := range stack.Spec.Inputs {
		if input := &stack.Spec.Inputs[i]; !input.Path {
			if earlier, ok := c.place[input.Key]; ok {
				return nil, fmt.Errorf("configuration key %q is set in spec.%s and in spec.inputs", input.Key, earlier)
			}
		}
	}
	return c.items, nil
}

func secretText(text string) (autov1alpha1.ConfigItem, error) {
	raw, err := json.Marshal(text)
	return autov1alpha1.ConfigItem{Value: &apiextensionsv1.JSON{Raw: raw}, Secret: new(true)}, err
}

// config has what was translated so far, and the field of each key.
type config struct {
	items []autov1alpha1.ConfigItem
	place map[string]string
}

// addConfig adds the values of a field.
func addConfig[Value any](c *config, field string, values map[string]Value, translate func(Value) (autov1alpha1.ConfigItem, error)) error {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		item, err := translate(values[key])
		if err != nil {
			return fmt.Errorf("spec.%s[%s]: %w", field, key, err)
		}
		if earlier, ok := c.place[key]; ok {
			return fmt.Errorf("configuration key %q is set in spec.%s and in spec.%s", key, earlier, field)
		}
		item.Key, c.place[key] = key, field
		c.items = append(c.items, item)
	}
	return nil
}
