package update

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/references"
)

// missingError is a Secret, a ConfigMap or a key in one that does not exist. It may appear any time, so the Update
// waits for it.
type missingError struct {
	kind references.Kind
	name string
	// key is empty when the object itself is missing.
	key string
	// usedBy says what needs it, for example `environment variable "TOKEN"`.
	usedBy string
}

func (e *missingError) Error() string {
	key := ""
	if e.key != "" {
		key = fmt.Sprintf("key %q in ", e.key)
	}
	return fmt.Sprintf("waiting for %s%s %q, which %s needs: it does not exist", key, strings.ToLower(string(e.kind)), e.name, e.usedBy)
}

// invalidError reports what only an edit can fix. It never quotes a value.
type invalidError struct {
	message string
}

func (e *invalidError) Error() string { return e.message }

func invalidf(format string, args ...any) error {
	return &invalidError{message: fmt.Sprintf(format, args...)}
}

// inputReader reads the values for one operation from the Secrets and ConfigMaps of a namespace, each object once and as it is now.
type inputReader struct {
	// reader must not be a cache, which would hold every Secret of the cluster.
	reader    ctrlclient.Reader
	namespace string
	// pods is true when the agent's container has the variables of the Workspace. Then the agent takes values that only a container knows from
	// there.
	pods bool
	// watcher knows which objects are watched; versions are the versions of the watched objects that were read.
	watcher  *references.Watcher
	versions []references.Version

	objects map[references.Key]map[string]string
	budget
}

// read returns the data of the Secret or ConfigMap, nil when it does not exist.
func (r *inputReader) read(ctx context.Context, kind references.Kind, name string) (map[string]string, error) {
	key := references.Key{Kind: kind, Namespace: r.namespace, Name: name}
	if data, known := r.objects[key]; known {
		return data, nil
	}
	if len(r.objects) >= references.MaxObjects {
		return nil, invalidf("the operation uses more than %d Secrets and ConfigMaps: use fewer", references.MaxObjects)
	}
	secret, configMap := &corev1.Secret{}, &corev1.ConfigMap{}
	object := ctrlclient.Object(configMap)
	if kind == references.Secret {
		object = secret
	}
	what := fmt.Sprintf("%s %q", strings.ToLower(string(kind)), name)
	err := r.reader.Get(ctx, types.NamespacedName{Namespace: r.namespace, Name: name}, object)
	if _, ok := errors.AsType[*informercache.TooLargeError](err); ok {
		return nil, invalidf("%s, which the operation uses, takes more than %d MiB of memory, as objects do that have very many keys: make it smaller",
			what, informercache.MaxMemory>>20)
	}
	if ctrlclient.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	if r.objects == nil {
		r.objects = map[references.Key]map[string]string{}
	}
	if err != nil {
		r.objects[key] = nil
		return nil, nil
	}
	if err := r.hold(len(configMap.Data)+len(secret.Data), sizeOf(configMap.Data)+sizeOf(secret.Data), what); err != nil {
		return nil, err
	}
	data := configMap.Data
	if data == nil {
		data = make(map[string]string, len(secret.Data))
		for key, value := range secret.Data {
			data[key] = string(value)
		}
	}
	r.objects[key] = data
	if r.watcher.Watches(object) {
		r.versions = append(r.versions, references.VersionOf(kind, object))
	}
	return data, nil
}

// sizeOf returns the size of the keys and the values, in bytes.
func sizeOf[Value string | []byte](data map[string]Value) (bytes int) {
	for key, value := range data {
		bytes += len(key) + len(value)
	}
	return bytes
}

// readKey returns the value of a key. The error is a *missingError when there is none.
func (r *inputReader) readKey(ctx context.Context, kind references.Kind, name, key, usedBy string) (string, error) {
	data, err := r.read(ctx, kind, name)
	if err != nil {
		return "", err
	}
	if data == nil {
		return "", &missingError{kind: kind, name: name, usedBy: usedBy}
	}
	value, ok := data[key]
	if !ok {
		return "", &missingError{kind: kind, name: name, key: key, usedBy: usedBy}
	}
	return value, nil
}

// config returns the configuration of a stack with the values of Secrets and ConfigMaps as they are now.
func (r *inputReader) config(ctx context.Context, items []autov1alpha1.ConfigItem) (result []*agentpb.ConfigItem, err error) {
	for i := range items {
		item, err := r.configItem(ctx, &items[i])
		if err != nil {
			return nil, err
		}
		result = append(result, item)
	}
	return result, nil
}

func (r *inputReader) configItem(ctx context.Context, from *autov1alpha1.ConfigItem) (*agentpb.ConfigItem, error) {
	item := &agentpb.ConfigItem{Key: from.Key, Path: ptr.Deref(from.Path, false), Secret: ptr.Deref(from.Secret, false)}
	usedBy := fmt.Sprintf("configuration key %q", from.Key)
	source := ptr.Deref(from.ValueFrom, autov1alpha1.ConfigValueFrom{})
	text, isJSON, err := "", source.JSON, error(nil)
	switch {
	case from.Value != nil:
		// Strings are text; all else stays JSON, so that numbers keep their digits.
		if json.Unmarshal(from.Value.Raw, &text) != nil || string(from.Value.Raw) == "null" {
			text, isJSON = string(from.Value.Raw), true
		}
	case from.ValueFrom == nil:
		return nil, invalidf("%s has neither value nor valueFrom", usedBy)
	case source.SecretKeyRef != nil:
		item.Secret = true
		text, err = r.readKey(ctx, references.Secret, source.SecretKeyRef.Name, source.SecretKeyRef.Key, usedBy)
	case source.ConfigMapKeyRef != nil:
		text, err = r.readKey(ctx, references.ConfigMap, source.ConfigMapKeyRef.Name, source.ConfigMapKeyRef.Key, usedBy)
	case source.Env != "":
		item.Value, item.ParseJson = &agentpb.ConfigItem_FromEnv{FromEnv: source.Env}, source.JSON
		return item, nil
	case source.Path != "":
		item.Value, item.ParseJson = &agentpb.ConfigItem_FromFile{FromFile: source.Path}, source.JSON
		return item, nil
	default:
		return nil, invalidf("valueFrom of %s names no source", usedBy)
	}
	if err == nil {
		err = r.use(len(from.Key) + len(text))
	}
	if err == nil && isJSON {
		err = r.addStructured(text, usedBy)
	}
	switch {
	case err != nil:
		return nil, err
	case !utf8.ValidString(text):
		return nil, invalidf("the value of %s is not UTF-8 text", usedBy)
	case isJSON && !json.Valid([]byte(text)):
		return nil, invalidf("the value of %s is not JSON", usedBy)
	case isJSON:
		item.Value = &agentpb.ConfigItem_Json{Json: text}
	default:
		item.Value = &agentpb.ConfigItem_Text{Text: text}
	}
	return item, nil
}
