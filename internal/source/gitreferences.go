package source

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

const (
	secretKind    = "Secret"
	configMapKind = "ConfigMap"

	// referenceTimeout bounds the reading of one Secret or ConfigMap.
	referenceTimeout = 10 * time.Second
)

// objectReference is a Secret or ConfigMap that a repository is read with.
type objectReference struct {
	kind, namespace, name string
}

// referencesOf returns what may have to be read for the credentials, each once, those with credentials first.
func referencesOf(namespace string, auth *autov1alpha1.GitAuth) []objectReference {
	if auth == nil {
		return nil
	}
	var found []objectReference
	add := func(kind, name string) {
		reference := objectReference{kind, namespace, name}
		for _, known := range found {
			if known == reference {
				return
			}
		}
		found = append(found, reference)
	}
	selectors := []*corev1.SecretKeySelector{auth.SSHPrivateKey, auth.Token, auth.Username, auth.Password}
	if app := auth.GitHubApp; app != nil {
		selectors = append(selectors, app.AppID, app.InstallationID, app.PrivateKey)
	}
	for _, selector := range selectors {
		if selector != nil {
			add(secretKind, selector.Name)
		}
	}
	if auth.SecretRef != nil {
		add(secretKind, auth.SecretRef.Name)
	}
	if ref := auth.KnownHostsRef; ref != nil {
		add(knownHostsKind(ref), ref.Name)
	}
	if auth.CertSecretRef != nil {
		add(secretKind, auth.CertSecretRef.Name)
	}
	if auth.ProxySecretRef != nil {
		add(secretKind, auth.ProxySecretRef.Name)
	}
	return found
}

func knownHostsKind(ref *autov1alpha1.KnownHostsReference) string {
	if ref.Kind == secretKind {
		return secretKind
	}
	return configMapKind
}

// objectData reads Secrets and ConfigMaps of one namespace for one look, each once and as it is now.
type objectData struct {
	live      client.Reader
	namespace string
	known     map[objectReference]map[string][]byte
}

// get returns the data of the object. Its errors are of type *gitTrouble.
func (o *objectData) get(ctx context.Context, kind, name string) (map[string][]byte, error) {
	reference := objectReference{kind, o.namespace, name}
	if data, ok := o.known[reference]; ok {
		return data, nil
	}
	ctx, cancel := context.WithTimeout(ctx, referenceTimeout)
	defer cancel()
	data, err := o.read(ctx, kind, types.NamespacedName{Namespace: o.namespace, Name: name})
	switch {
	case err == nil:
		o.known[reference] = data
		return data, nil
	case apierrors.IsNotFound(err):
		return nil, missingReference("%s %q, which holds what the git repository is read with, does not exist: create it", kind, name)
	case apierrors.IsForbidden(err):
		trouble := missingReference("the controller is not allowed to read %s %q, which holds what the git repository is read with", kind, name)
		trouble.problem.Reason = pulumiv1.AccessDeniedReason
		return nil, trouble
	}
	return nil, unavailable("%s %q cannot be read from the API server: %s", kind, name, apierrors.ReasonForError(err))
}

func (o *objectData) read(ctx context.Context, kind string, key types.NamespacedName) (map[string][]byte, error) {
	if kind == secretKind {
		secret := &corev1.Secret{}
		err := o.live.Get(ctx, key, secret)
		return secret.Data, err
	}
	configMap := &corev1.ConfigMap{}
	err := o.live.Get(ctx, key, configMap)
	data := make(map[string][]byte, len(configMap.Data)+len(configMap.BinaryData))
	for name, value := range configMap.Data {
		data[name] = []byte(value)
	}
	for name, value := range configMap.BinaryData {
		data[name] = value
	}
	return data, err
}

// value returns the value of a key, and false when there is none. Its errors are of type *gitTrouble.
func (o *objectData) value(ctx context.Context, kind, name, key string) ([]byte, bool, error) {
	data, err := o.get(ctx, kind, name)
	if err != nil {
		return nil, false, err
	}
	value, ok := data[key]
	return value, ok, nil
}

// needed returns the value of a key that has to be there.
func (o *objectData) needed(ctx context.Context, kind, name, key string) ([]byte, error) {
	value, ok, err := o.value(ctx, kind, name, key)
	if err == nil && !ok {
		err = missingKey(kind, name, key)
	}
	return value, err
}

func missingKey(kind, name, key string) *gitTrouble {
	return missingReference("%s %q has no key %q, which the git repository is read with: add it", kind, name, key)
}

// selected returns the value that the selector names, and false when it names none, or one that is optional and not there.
func (o *objectData) selected(ctx context.Context, selector *corev1.SecretKeySelector) ([]byte, bool, error) {
	if selector == nil {
		return nil, false, nil
	}
	optional := selector.Optional != nil && *selector.Optional
	value, ok, err := o.value(ctx, secretKind, selector.Name, selector.Key)
	var trouble *gitTrouble
	if optional && errors.As(err, &trouble) && trouble.problem.Reason == pulumiv1.SecretNotFoundReason {
		return nil, false, nil
	}
	if err == nil && !ok && !optional {
		err = missingKey(secretKind, selector.Name, selector.Key)
	}
	return value, ok, err
}
