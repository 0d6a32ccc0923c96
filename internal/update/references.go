package update

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	watched "github.com/stack-controller/stack-controller/internal/references"
)

// missingError is a Secret, a ConfigMap or a key in one that does not exist. It may appear any time, so the Update
// waits for it.
type missingError struct {
	// kind is "secret" or "configmap".
	kind, name string
	// key is empty when the object itself is missing.
	key string
	// usedBy says what needs it, for example `environment variable "TOKEN"`.
	usedBy string
}

func (e *missingError) Error() string {
	if e.key == "" {
		return fmt.Sprintf("waiting for %s %q, which %s needs: it does not exist", e.kind, e.name, e.usedBy)
	}
	return fmt.Sprintf("waiting for key %q in %s %q, which %s needs: it does not exist", e.key, e.kind, e.name, e.usedBy)
}

// invalidError is something that only an edit can mend. It never quotes a value.
type invalidError struct {
	message string
}

func (e *invalidError) Error() string {
	return e.message
}

func invalidf(format string, args ...any) error {
	return &invalidError{message: fmt.Sprintf(format, args...)}
}

// references reads Secrets and ConfigMaps of one namespace for one operation, each object once and as it is now.
type references struct {
	reader     ctrlclient.Reader
	namespace  string
	secrets    map[string]map[string][]byte
	configMaps map[string]map[string]string
	// pods says that the agent's container has the variables of the Workspace, so that it can be asked for those that only
	// a container can know.
	pods bool
	// watcher tells which objects are watched; versions are those of these that were read.
	watcher  *watched.Watcher
	versions []watched.Version
}

// newReferences returns references that read with the reader, which must not be a cache: that would hold every Secret of the
// cluster.
func newReferences(reader ctrlclient.Reader, namespace string) *references {
	return &references{
		reader:     reader,
		namespace:  namespace,
		secrets:    map[string]map[string][]byte{},
		configMaps: map[string]map[string]string{},
	}
}

// note keeps the version of an object that was read, when changes of it are watched.
func (r *references) note(kind watched.Kind, object metav1.Object) {
	if r.watcher.Watches(object) {
		r.versions = append(r.versions, watched.VersionOf(kind, object))
	}
}

// secret returns the data of the Secret, nil when it does not exist.
func (r *references) secret(ctx context.Context, name string) (map[string][]byte, error) {
	if data, known := r.secrets[name]; known {
		return data, nil
	}
	secret := &corev1.Secret{}
	err := r.reader.Get(ctx, types.NamespacedName{Namespace: r.namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read secret %q: %w", name, err)
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	r.secrets[name] = secret.Data
	r.note(watched.Secret, secret)
	return secret.Data, nil
}

// configMap returns the data of the ConfigMap, nil when it does not exist.
func (r *references) configMap(ctx context.Context, name string) (map[string]string, error) {
	if data, known := r.configMaps[name]; known {
		return data, nil
	}
	configMap := &corev1.ConfigMap{}
	err := r.reader.Get(ctx, types.NamespacedName{Namespace: r.namespace, Name: name}, configMap)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read configmap %q: %w", name, err)
	}
	if configMap.Data == nil {
		configMap.Data = map[string]string{}
	}
	r.configMaps[name] = configMap.Data
	r.note(watched.ConfigMap, configMap)
	return configMap.Data, nil
}

// secretKey returns the value of a key. The error is a *missingError when there is none.
func (r *references) secretKey(ctx context.Context, name, key, usedBy string) (string, error) {
	data, err := r.secret(ctx, name)
	if err != nil {
		return "", err
	}
	if data == nil {
		return "", &missingError{kind: "secret", name: name, usedBy: usedBy}
	}
	value, ok := data[key]
	if !ok {
		return "", &missingError{kind: "secret", name: name, key: key, usedBy: usedBy}
	}
	return string(value), nil
}

// configMapKey returns the value of a key. The error is a *missingError when there is none.
func (r *references) configMapKey(ctx context.Context, name, key, usedBy string) (string, error) {
	data, err := r.configMap(ctx, name)
	if err != nil {
		return "", err
	}
	if data == nil {
		return "", &missingError{kind: "configmap", name: name, usedBy: usedBy}
	}
	value, ok := data[key]
	if !ok {
		return "", &missingError{kind: "configmap", name: name, key: key, usedBy: usedBy}
	}
	return value, nil
}
