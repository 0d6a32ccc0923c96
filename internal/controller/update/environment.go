package update

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/references"
)

// variable is an environment variable of an operation.
type variable struct {
	value string
	// secret is true when all or part of the value comes from a Secret.
	secret bool
	// live is true when all or part of the value was just read from a Secret or a ConfigMap.
	live bool
	// origin is where the value is known.
	origin origin
}

// origin is where the value of a variable is known.
type origin int

const (
	// fromWorkspace: the controller knows the value.
	fromWorkspace origin = iota
	// fromContainer: the value is that of the variable of the same name in the agent's container.
	fromContainer
	// fromContainerIfAny: as fromContainer, but the container may not have the variable. If it has, the operation inherits the variable.
	fromContainerIfAny
	// fromFile: a file of the pod has the value, and the value here is its path.
	fromFile
)

// containerVariables are in every container with an agent, before those of the Workspace, which can refer to them.
var containerVariables = []string{"POD_NAMESPACE", "POD_SA_NAME", "AGENT_MEMLIMIT", "PULUMI_ENV"}

// environment returns the variables of the Workspace with their values as they are now, sorted by name. The rules are those of
// a container: envFrom first, a later entry wins over an earlier one, env wins over envFrom, and $(NAME) in a value of env
// stands for a variable that was defined before.
func (r *inputReader) environment(ctx context.Context, workspace *autov1alpha1.Workspace) ([]*agentpb.EnvironmentVariable, error) {
	variables := map[string]variable{}
	if r.pods {
		for _, name := range containerVariables {
			if err := r.set(variables, name, variable{origin: fromContainerIfAny}, "the pod"); err != nil {
				return nil, err
			}
		}
	}
	for i := range workspace.Spec.EnvFrom {
		if err := r.addAll(ctx, variables, &workspace.Spec.EnvFrom[i]); err != nil {
			return nil, err
		}
	}
	for i := range workspace.Spec.Env {
		if err := r.add(ctx, variables, workspace, &workspace.Spec.Env[i]); err != nil {
			return nil, err
		}
	}
	for _, from := range workspace.Spec.EnvFiles {
		if err := r.addFile(variables, from); err != nil {
			return nil, err
		}
	}
	result := make([]*agentpb.EnvironmentVariable, 0, len(variables))
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		value := variables[name]
		item := &agentpb.EnvironmentVariable{Name: name, Secret: value.secret}
		switch {
		case !utf8.ValidString(name+value.value) || strings.ContainsRune(name+value.value, 0):
			return nil, inputs.Invalidf("environment variable %q cannot be set: a NUL byte or text that is not UTF-8 is in it", name)
		case value.origin == fromContainerIfAny:
			continue
		case value.origin == fromContainer:
			item.Value = &agentpb.EnvironmentVariable_FromEnv{FromEnv: name}
		case value.origin == fromFile:
			item.Value = &agentpb.EnvironmentVariable_FromFile{FromFile: value.value}
		default:
			item.Value = &agentpb.EnvironmentVariable_Text{Text: value.value}
		}
		result = append(result, item)
	}
	return result, nil
}

// set defines a variable, within the bounds. from says where it comes from. The error is an *inputs.InvalidError.
func (r *inputReader) set(variables map[string]variable, name string, value variable, from string) error {
	size := len(name) + len("=") + len(value.value)
	if size > maxVariable {
		return tooLong(name)
	}
	if before, known := variables[name]; known {
		size -= len(name) + len("=") + len(before.value)
	} else {
		size += len("\x00") + pointerSize
		if err := r.addEntries(1, from); err != nil {
			return err
		}
	}
	if err := r.addText(size, from); err != nil {
		return err
	}
	variables[name] = value
	return r.use(len(name) + len(value.value))
}

func tooLong(name string) error {
	const shown = 64
	if len(name) > shown {
		name = strings.ToValidUTF8(name[:shown], "") + "…"
	}
	return inputs.Invalidf("environment variable %q has more than %d KiB, with which no program can be started: let the program read a file or the configuration",
		name, (maxVariable+1)>>10)
}

// addAll adds the keys of a Secret or ConfigMap. Keys that cannot be names are left out, as the kubelet does.
func (r *inputReader) addAll(ctx context.Context, variables map[string]variable, from *corev1.EnvFromSource) error {
	kind, source := references.ConfigMap, from.ConfigMapRef
	if from.SecretRef != nil {
		kind, source = references.Secret, (*corev1.ConfigMapEnvSource)(from.SecretRef)
	}
	if source == nil {
		return nil
	}
	data, err := r.Object(ctx, kind, source.Name)
	if err != nil {
		return err
	}
	if data == nil && !ptr.Deref(source.Optional, false) {
		return &inputs.MissingError{Kind: kind, Name: source.Name, UsedBy: "envFrom of the workspace"}
	}
	what := fmt.Sprintf("the %d keys of %s %q", len(data), strings.ToLower(string(kind)), source.Name)
	for key, value := range data {
		name := from.Prefix + key
		if name == "" || strings.Contains(name, "=") {
			continue
		}
		if err := r.set(variables, name, variable{value: value, secret: kind == references.Secret, live: true}, what); err != nil {
			return err
		}
	}
	return nil
}

// add adds one variable; an optional one whose source is missing is left out.
func (r *inputReader) add(ctx context.Context, variables map[string]variable, workspace *autov1alpha1.Workspace, env *corev1.EnvVar) (err error) {
	if env.Name == "" || strings.Contains(env.Name, "=") {
		return inputs.Invalidf("%q cannot be the name of an environment variable", env.Name)
	}
	var value variable
	switch from := env.ValueFrom; {
	case from == nil:
		value, err = r.expand(env, variables)
		if err == nil && value.origin != fromWorkspace && value.live {
			return inputs.Invalidf("environment variable %q of workspace %q puts together what only its pod knows and what comes from a Secret or ConfigMap: "+
				"use two variables", env.Name, workspace.Name)
		}
	case from.SecretKeyRef != nil:
		value, err = r.keyVariable(ctx, references.Secret, from.SecretKeyRef, env.Name)
	case from.ConfigMapKeyRef != nil:
		value, err = r.keyVariable(ctx, references.ConfigMap, (*corev1.SecretKeySelector)(from.ConfigMapKeyRef), env.Name)
	default:
		value, err = r.podVariable(workspace, env)
	}
	if errors.Is(err, errOptional) {
		return nil
	}
	if err != nil {
		return err
	}
	return r.set(variables, env.Name, value, "the environment variables of the workspace")
}

// addFile adds a variable that the agent reads from a file of the pod. With the process runtime it would be one of the controller.
func (r *inputReader) addFile(variables map[string]variable, from autov1alpha1.EnvFile) error {
	if !r.pods {
		return inputs.Invalidf("environment variable %q: without a pod, no variable can be set from a file", from.Name)
	}
	if err := autov1alpha1.CheckEnvFile(from.Path); err != nil {
		return inputs.Invalidf("environment variable %q: %s", from.Name, err)
	}
	if _, known := variables[from.Name]; known || strings.Contains(from.Name, "=") {
		return inputs.Invalidf("environment variable %q is set twice, or has no usable name: a variable that is set from a file can be set nowhere else", from.Name)
	}
	return r.set(variables, from.Name, variable{value: from.Path, secret: true, origin: fromFile}, "the files of the workspace")
}

// errOptional says that there is no value, and that none is needed.
var errOptional = errors.New("the optional key does not exist")

func (r *inputReader) keyVariable(ctx context.Context, kind references.Kind, from *corev1.SecretKeySelector, name string) (variable, error) {
	value, err := r.Value(ctx, kind, from.Name, from.Key, fmt.Sprintf("environment variable %q", name))
	if missing := (*inputs.MissingError)(nil); errors.As(err, &missing) && ptr.Deref(from.Optional, false) {
		return variable{}, errOptional
	}
	return variable{value: value, secret: kind == references.Secret, live: true}, err
}

// podVariable leaves values that only a container knows to the agent. Without a container, only fields of the Workspace itself are
// supported.
func (r *inputReader) podVariable(workspace *autov1alpha1.Workspace, env *corev1.EnvVar) (variable, error) {
	switch from := env.ValueFrom; {
	case r.pods && from.FileKeyRef != nil && ptr.Deref(from.FileKeyRef.Optional, false):
		return variable{origin: fromContainerIfAny}, nil
	case r.pods && (from.FieldRef != nil || from.ResourceFieldRef != nil || from.FileKeyRef != nil):
		return variable{origin: fromContainer}, nil
	case from.FieldRef != nil && from.FieldRef.FieldPath == "metadata.name":
		return variable{value: workspace.Name}, nil
	case from.FieldRef != nil && from.FieldRef.FieldPath == "metadata.namespace":
		return variable{value: workspace.Namespace}, nil
	}
	return variable{}, inputs.Invalidf("environment variable %q of workspace %q: without a pod, only secretKeyRef, configMapKeyRef and fieldRef to metadata.name "+
		"or metadata.namespace are supported", env.Name, workspace.Name)
}

// variableReference is $(NAME), or $$, which stands for a dollar sign that starts no reference.
var variableReference = regexp.MustCompile(`\$\$|\$\(([^)]*)\)`)

// serviceVariable matches a reference to a variable that the kubelet makes for a Service.
var serviceVariable = regexp.MustCompile(`^\$\([A-Z0-9_]+_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)\)$`)

// expand replaces each $(NAME) by the value of the variable, if there is one. If any part of the result is secret, all of it is. If only
// the container knows any part, the result is the value that the container has. That of a Service is known only there; any other unknown reference
// stays as it is, since the container may still have a value that was removed. The error is an *inputs.InvalidError when the inserted values are
// longer than a variable can be: each variable that refers twice to the one before doubles the length.
func (r *inputReader) expand(env *corev1.EnvVar, variables map[string]variable) (variable, error) {
	result, added, unknown := variable{}, 0, false
	result.value = variableReference.ReplaceAllStringFunc(env.Value, func(match string) string {
		if match == "$$" {
			return "$"
		}
		reference, known := variables[match[len("$("):len(match)-len(")")]]
		if !known {
			unknown = unknown || serviceVariable.MatchString(match)
			return match
		}
		if added += len(reference.value); added > maxVariable {
			return ""
		}
		result.secret = result.secret || reference.secret
		result.live = result.live || reference.live
		if reference.origin != fromWorkspace {
			result.origin = fromContainer
		}
		return reference.value
	})
	if added > maxVariable {
		return variable{}, tooLong(env.Name)
	}
	if unknown && r.pods && !result.live {
		result.origin = fromContainer
	}
	return result, nil
}
