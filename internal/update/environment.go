package update

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// variable is an environment variable of an operation.
type variable struct {
	value string
	// secret is true for what comes from a Secret, also in part.
	secret bool
	// live is true for what was read from a Secret or a ConfigMap just now, also in part.
	live bool
	// origin is who knows the value.
	origin origin
}

// origin is who knows the value of a variable.
type origin int

const (
	// fromWorkspace: the value is known here.
	fromWorkspace origin = iota
	// fromContainer: the value is that of the variable of the same name in the agent's container.
	fromContainer
	// fromContainerIfAny: as fromContainer, and there may be no such variable. The operation inherits it when there is one.
	fromContainerIfAny
)

// containerVariables are in every container with an agent, before those of the Workspace, which can refer to them.
var containerVariables = []string{"POD_NAMESPACE", "POD_SA_NAME", "AGENT_MEMLIMIT"}

// environment returns the variables of the Workspace with their values as they are now, sorted by name. The rules are those of
// a container: envFrom first, a later entry wins over an earlier one, env wins over envFrom, and $(NAME) in a value of env
// stands for a variable that was defined before.
func (r *references) environment(ctx context.Context, workspace *autov1alpha1.Workspace) ([]*proto.EnvironmentVariable, error) {
	variables := map[string]variable{}
	if r.pods {
		for _, name := range containerVariables {
			variables[name] = variable{origin: fromContainerIfAny}
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
	result := make([]*proto.EnvironmentVariable, 0, len(variables))
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		value := variables[name]
		if !validVariable(name, value.value) {
			return nil, invalidf("environment variable %q cannot be set: a NUL byte or text that is not UTF-8 is in it", name)
		}
		switch item := (&proto.EnvironmentVariable{Name: name, Secret: value.secret}); value.origin {
		case fromWorkspace:
			item.Value = &proto.EnvironmentVariable_Text{Text: value.value}
			result = append(result, item)
		case fromContainer:
			item.Value = &proto.EnvironmentVariable_FromEnv{FromEnv: name}
			result = append(result, item)
		case fromContainerIfAny:
		}
	}
	return result, nil
}

// validVariable tells whether a process can have the variable, and a message can carry it.
func validVariable(name, value string) bool {
	return utf8.ValidString(name) && utf8.ValidString(value) && !strings.ContainsRune(name+value, 0)
}

// addAll adds the keys of a Secret or ConfigMap. Keys that cannot be names are left out, as the kubelet does.
func (r *references) addAll(ctx context.Context, variables map[string]variable, source *corev1.EnvFromSource) error {
	const usedBy = "envFrom of the workspace"
	switch {
	case source.SecretRef != nil:
		data, err := r.secret(ctx, source.SecretRef.Name)
		if err != nil {
			return err
		}
		if data == nil && !ptr.Deref(source.SecretRef.Optional, false) {
			return &missingError{kind: "secret", name: source.SecretRef.Name, usedBy: usedBy}
		}
		for key, value := range data {
			setVariable(variables, source.Prefix+key, variable{value: string(value), secret: true, live: true})
		}
	case source.ConfigMapRef != nil:
		data, err := r.configMap(ctx, source.ConfigMapRef.Name)
		if err != nil {
			return err
		}
		if data == nil && !ptr.Deref(source.ConfigMapRef.Optional, false) {
			return &missingError{kind: "configmap", name: source.ConfigMapRef.Name, usedBy: usedBy}
		}
		for key, value := range data {
			setVariable(variables, source.Prefix+key, variable{value: value, live: true})
		}
	}
	return nil
}

func setVariable(variables map[string]variable, name string, value variable) {
	if name != "" && !strings.Contains(name, "=") {
		variables[name] = value
	}
}

// add adds one variable; an optional one whose source is missing is left out.
func (r *references) add(ctx context.Context, variables map[string]variable, workspace *autov1alpha1.Workspace, env *corev1.EnvVar) error {
	if env.Name == "" || strings.Contains(env.Name, "=") {
		return invalidf("%q cannot be the name of an environment variable", env.Name)
	}
	if env.ValueFrom == nil {
		value := expand(env.Value, variables)
		if value.origin != fromWorkspace && value.live {
			return invalidf("environment variable %q of workspace %q puts together what only its pod knows and what comes from a Secret or ConfigMap: "+
				"use two variables", env.Name, workspace.Name)
		}
		variables[env.Name] = value
		return nil
	}
	value, err := r.valueFrom(ctx, workspace, env)
	var missing *missingError
	if errors.As(err, &missing) && optional(env.ValueFrom) {
		return nil
	}
	if err != nil {
		return err
	}
	variables[env.Name] = value
	return nil
}

// valueFrom reads what the variable refers to. What only the container can know is asked of the agent; without a container, only
// what the Workspace itself tells can be given.
func (r *references) valueFrom(ctx context.Context, workspace *autov1alpha1.Workspace, env *corev1.EnvVar) (variable, error) {
	usedBy := `environment variable "` + env.Name + `"`
	switch from := env.ValueFrom; {
	case from.SecretKeyRef != nil:
		value, err := r.secretKey(ctx, from.SecretKeyRef.Name, from.SecretKeyRef.Key, usedBy)
		return variable{value: value, secret: true, live: true}, err
	case from.ConfigMapKeyRef != nil:
		value, err := r.configMapKey(ctx, from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Key, usedBy)
		return variable{value: value, live: true}, err
	case r.pods && from.FileKeyRef != nil && ptr.Deref(from.FileKeyRef.Optional, false):
		return variable{origin: fromContainerIfAny}, nil
	case r.pods && (from.FieldRef != nil || from.ResourceFieldRef != nil || from.FileKeyRef != nil):
		return variable{origin: fromContainer}, nil
	case from.FieldRef != nil && from.FieldRef.FieldPath == "metadata.name":
		return variable{value: workspace.Name}, nil
	case from.FieldRef != nil && from.FieldRef.FieldPath == "metadata.namespace":
		return variable{value: workspace.Namespace}, nil
	}
	return variable{}, invalidf("%s of workspace %q: without a pod, only secretKeyRef, configMapKeyRef and fieldRef to metadata.name or metadata.namespace "+
		"are supported", usedBy, workspace.Name)
}

func optional(from *corev1.EnvVarSource) bool {
	switch {
	case from.SecretKeyRef != nil:
		return ptr.Deref(from.SecretKeyRef.Optional, false)
	case from.ConfigMapKeyRef != nil:
		return ptr.Deref(from.ConfigMapKeyRef.Optional, false)
	}
	return false
}

// expand replaces $(NAME) by the variable, when there is one, and $$ by a dollar sign that starts no reference. What a
// secret variable goes into is secret, and what only the container knows makes all of it such a value: the container has it.
func expand(text string, variables map[string]variable) variable {
	var value strings.Builder
	result := variable{}
	for {
		before, after, found := strings.Cut(text, "$")
		value.WriteString(before)
		if !found {
			break
		}
		name, rest, closed := strings.Cut(strings.TrimPrefix(after, "("), ")")
		reference, known := variables[name]
		switch {
		case strings.HasPrefix(after, "$"):
			value.WriteByte('$')
			text = after[1:]
		case strings.HasPrefix(after, "(") && closed && known:
			value.WriteString(reference.value)
			result.secret = result.secret || reference.secret
			result.live = result.live || reference.live
			if reference.origin != fromWorkspace {
				result.origin = fromContainer
			}
			text = rest
		default:
			value.WriteByte('$')
			text = after
		}
	}
	result.value = value.String()
	return result
}
