// Package informercache bounds what an informer keeps of each object. Who may create objects may create hundreds of a megabyte, all of which
// the controller would hold in memory. Of a large object the informer keeps its small fields, by which it is found and with which lists
// are searched; the client reads the object itself from the API server when it is needed.
package informercache

import (
	"cmp"
	"context"
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// MaxSize is how much memory an object may take that is kept whole, in bytes.
	MaxSize = 64 << 10
	// MaxMemory is how much memory an object may take that somebody works with, in bytes: a reconcile has several copies of parts of it.
	// JSON of an object takes at most 1.5 MiB.
	MaxMemory = 4 << 20
	// maxPart bounds what is kept of each of metadata, spec and status of a larger one. None of them can displace another. When what is kept
	// takes more memory than that, less of it is kept, and nothing below minPart.
	maxPart, minPart = MaxSize / 4, 1 << 10
	// shortenedAnnotation marks what is kept of a larger object, and with tooLarge one that takes more than MaxMemory. It is never written to
	// the API server.
	shortenedAnnotation = "informercache.pulumi.com/shortened"
	tooLarge            = "too large"
)

// Transform returns a function for an informer that keeps small objects as they are, and of others their small fields, after what next leaves
// of them. Objects are pointers to types that marshal as the API server's JSON.
func Transform(next toolscache.TransformFunc) toolscache.TransformFunc {
	return func(object any) (any, error) {
		object, err := next(object)
		if err != nil {
			return nil, err
		}
		typed, ok := object.(client.Object)
		if !ok {
			return object, nil
		}
		return Shortened(typed), nil
	}
}

// Shortened returns a small object as it is, and of another one its small fields. It never fails: an informer would lose its other objects, too.
func Shortened(object client.Object) client.Object {
	size := memoryOf(object, MaxMemory)
	switch {
	case size <= MaxSize:
		return object
	case size > MaxMemory:
		return marked(identityOf(object), tooLarge)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	for part := maxPart; err == nil && part >= minPart; part /= 2 {
		short := newLike(object)
		if err = runtime.DefaultUnstructuredConverter.FromUnstructured(smallFields(content, part), short); err == nil && memoryOf(short, MaxSize) <= MaxSize {
			return marked(short, "true")
		}
	}
	// The client reads it, and whoever uses it then says what is wrong with it.
	return marked(identityOf(object), "true")
}

func marked(short client.Object, mark string) client.Object {
	annotations := short.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[shortenedAnnotation] = mark
	short.SetAnnotations(annotations)
	return short
}

// identityOf is an object of which only its name and version are known, whether it is deleted, and its labels and owners unless they are many.
func identityOf(object client.Object) client.Object {
	short := newLike(object)
	short.SetName(object.GetName())
	short.SetNamespace(object.GetNamespace())
	short.SetUID(object.GetUID())
	short.SetResourceVersion(object.GetResourceVersion())
	short.SetGeneration(object.GetGeneration())
	short.SetDeletionTimestamp(object.GetDeletionTimestamp())
	if labels := object.GetLabels(); memoryOf(labels, maxPart) <= maxPart {
		short.SetLabels(labels)
	}
	if owners := object.GetOwnerReferences(); memoryOf(owners, maxPart) <= maxPart {
		short.SetOwnerReferences(owners)
	}
	return short
}

func smallFields(content map[string]any, limit int) map[string]any {
	kept := make(map[string]any, len(content))
	for name, part := range content {
		left := limit
		kept[name] = smallest(part, &left)
	}
	return kept
}

func newLike(object client.Object) client.Object {
	return reflect.New(reflect.TypeOf(object).Elem()).Interface().(client.Object)
}

// smallest returns a value without what does not fit: of a map the largest entries, of a list the last ones. A text is kept whole or not at
// all, so that no name becomes another one. It takes what it keeps off what is left.
func smallest(value any, left *int) any {
	size := sizeOf(value)
	if size <= *left {
		*left -= size
		return value
	}
	if *left -= valueSize; *left <= 0 {
		return nil
	}
	switch value := value.(type) {
	case map[string]any:
		kept := map[string]any{}
		sizes := make(map[string]int, len(value))
		for key, item := range value {
			sizes[key] = len(key) + sizeOf(item)
		}
		for _, key := range slices.SortedFunc(maps.Keys(value), func(a, b string) int {
			return cmp.Or(cmp.Compare(sizes[a], sizes[b]), cmp.Compare(a, b))
		}) {
			if *left -= len(key); *left <= 0 {
				break
			}
			if item := smallest(value[key], left); item != nil {
				kept[key] = item
			}
		}
		return kept
	case []any:
		kept := []any{}
		for i := 0; i < len(value) && *left > 0; i++ {
			if item := smallest(value[i], left); item != nil {
				kept = append(kept, item)
			}
		}
		return kept
	}
	return nil
}

// valueSize is what a value takes that has no text, such as an empty list or a number, in bytes.
const valueSize = 16

// sizeOf returns about what a JSON value costs, in bytes.
func sizeOf(value any) int {
	size := valueSize
	switch value := value.(type) {
	case string:
		size += len(value)
	case map[string]any:
		for key, item := range value {
			size += len(key) + sizeOf(item)
		}
	case []any:
		for _, item := range value {
			size += sizeOf(item)
		}
	}
	return size
}

// IsShortened reports whether the object has only the small fields of the one on the API server. Get never returns such an object; List does.
func IsShortened(object client.Object) bool {
	_, shortened := object.GetAnnotations()[shortenedAnnotation]
	return shortened
}

// IsTooLarge reports whether Get refuses the object, of which the cache has its name and little else.
func IsTooLarge(object client.Object) bool {
	return object.GetAnnotations()[shortenedAnnotation] == tooLarge
}

// NewClient makes a client that reads from the cache of the options, and with Get what that has shortened from the API server.
func NewClient(config *rest.Config, options client.Options) (client.Client, error) {
	cached, err := client.New(config, options)
	if err != nil {
		return nil, err
	}
	options.Cache = nil
	live, err := client.New(config, options)
	if err != nil {
		return nil, err
	}
	return &wholeClient{cached, NewReader(live)}, nil
}

type wholeClient struct {
	client.Client
	live client.Reader
}

// Get implements client.Reader. Its error is a *TooLargeError for an object that takes more than MaxMemory.
func (c *wholeClient) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if err := c.Client.Get(ctx, key, object, options...); err != nil || !IsShortened(object) {
		return err
	}
	if IsTooLarge(object) {
		return refuse(object)
	}
	// It may share its maps with the cache.
	reflect.ValueOf(object).Elem().SetZero()
	return c.live.Get(ctx, key, object)
}

// Cached returns a reader of what the cache has, which may be the small fields only, without a request to the API server: for handlers of
// events, which those of all objects wait for.
func Cached(c client.Client) client.Reader {
	if whole, ok := c.(*wholeClient); ok {
		return whole.Client
	}
	return c
}
