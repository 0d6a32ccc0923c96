// Package inputs reads the values that an operation takes from Secrets, ConfigMaps and outputs of Stacks, and tells by keyed hashes whether a
// value is another one than before.
package inputs

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/stackoutputs"
)

const (
	// MaxReferenced bounds, in bytes, the objects that the values of one operation are read from, with KeyCost for each key. The API server
	// admits 1 MiB for each.
	MaxReferenced = 8 << 20
	// KeyCost is what a key of an object takes in memory besides the texts, in bytes: an entry of a map with two strings, which takes 33 bytes,
	// and the map has room for up to twice as many.
	KeyCost = 64
)

// Reader reads the values of one operation, each object once and as it is now. The zero value reads nothing.
type Reader struct {
	// APIReader must not be a cache, which would hold every Secret of the cluster.
	APIReader client.Reader
	// Namespace is the one of the Secrets and ConfigMaps.
	Namespace string
	// Stacks returns the Stack with a name, which the caller does not change; nil when there is none.
	Stacks func(context.Context, types.NamespacedName) (*pulumiv1.Stack, error)
	// Scope says whether Stacks of other namespaces may be used.
	Scope references.Scope
	// Watcher knows which objects are watched.
	Watcher *references.Watcher
	// Stored has outputs that were read a moment ago.
	Stored *Stored

	objects map[references.Key]map[string]string
	outputs map[types.NamespacedName]*stackoutputs.Table
	// versions are those of the watched objects that were read, and of the outputs.
	versions map[references.Key]references.Version
	// held is the size of the objects that were read, in bytes.
	held int
}

// Object returns the data of the Secret or ConfigMap, nil when it does not exist.
func (r *Reader) Object(ctx context.Context, kind references.Kind, name string) (map[string]string, error) {
	key := references.Key{Kind: kind, Namespace: r.Namespace, Name: name}
	if data, known := r.objects[key]; known {
		return data, nil
	}
	if len(r.objects)+len(r.outputs) >= references.MaxObjects {
		return nil, Invalidf("the operation uses more than %d Secrets and ConfigMaps: use fewer", references.MaxObjects)
	}
	secret, configMap := &corev1.Secret{}, &corev1.ConfigMap{}
	object := client.Object(configMap)
	if kind == references.Secret {
		object = secret
	}
	what := fmt.Sprintf("%s %q", strings.ToLower(string(kind)), name)
	err := r.APIReader.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: name}, object)
	if _, ok := errors.AsType[*informercache.TooLargeError](err); ok {
		return nil, Invalidf("%s, which the operation uses, takes more than %d MiB of memory, as objects do that have very many keys: make it smaller",
			what, informercache.MaxMemory>>20)
	}
	if client.IgnoreNotFound(err) != nil {
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
	if r.Watcher.Watches(object) {
		r.keep(references.VersionOf(kind, object))
	}
	return data, nil
}

// hold counts the keys of an object that was read, and the bytes of the keys and their values.
func (r *Reader) hold(keys, bytes int, what string) error {
	if r.held += keys*KeyCost + bytes; r.held > MaxReferenced {
		return Invalidf("the Secrets and ConfigMaps that the operation uses have more than %d MiB, with %d bytes for each key; the last one is %s: "+
			"use fewer or smaller ones", MaxReferenced>>20, KeyCost, what)
	}
	return nil
}

// sizeOf returns the size of the keys and the values, in bytes.
func sizeOf[Value string | []byte](data map[string]Value) (bytes int) {
	for key, value := range data {
		bytes += len(key) + len(value)
	}
	return bytes
}

// Value returns the value of a key. The error is a *MissingError when there is none.
func (r *Reader) Value(ctx context.Context, kind references.Kind, name, key, usedBy string) (string, error) {
	data, err := r.Object(ctx, kind, name)
	if err != nil {
		return "", err
	}
	if data == nil {
		return "", &MissingError{Kind: kind, Name: name, UsedBy: usedBy}
	}
	value, ok := data[key]
	if !ok {
		return "", &MissingError{Kind: kind, Name: name, Key: key, UsedBy: usedBy}
	}
	return value, nil
}

func (r *Reader) keep(version references.Version) {
	if r.versions == nil {
		r.versions = map[references.Key]references.Version{}
	}
	r.versions[version.Key] = version
}

// Versions returns the versions of those of the objects that were read and are watched.
func (r *Reader) Versions(of []references.Key) (versions []references.Version) {
	for _, key := range of {
		if version, known := r.versions[key]; known {
			versions = append(versions, version)
		}
	}
	return versions
}
