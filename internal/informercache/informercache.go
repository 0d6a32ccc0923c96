// Package informercache bounds what an informer reads and keeps of each object. A tenant who may create objects may create hundreds of them
// with a megabyte each, and the controller would hold all of them in memory; and all objects of a kind wait for the one goroutine that
// decodes them. Of a large object, the informer decodes and keeps only the small fields, by which the object is found and which searches of
// lists use. The client reads the object itself from the API server when it is needed.
//
// A large object meets these, in this order: NewTransport removes parts of it before an informer decodes it; Transform removes parts of what was
// decoded; a live read refuses it after it was decoded and before it is used (boundedReader, ShowingTooLarge). What Programs have in fields that
// are not known is counted by internal/source/render before it is decoded.
package informercache

import (
	"bytes"
	"context"
	"encoding/json"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// MaxSize is how much memory an object may take to be kept whole, in bytes.
	MaxSize = 64 << 10
	// MaxMemory is how much memory an object may take to be used at all, in bytes: a reconcile has several copies of parts of it. The JSON
	// of an object takes at most 1.5 MiB.
	MaxMemory = 4 << 20
	// maxPart bounds what is kept of each part of a larger object: metadata, spec and status each have their own bound, so that none can
	// displace another. When the result takes more memory than MaxSize, the bound is halved, down to minPart.
	maxPart, minPart = MaxSize / 4, 1 << 10
	// identityPart bounds what is kept of the metadata of an object that takes more than MaxMemory, in bytes.
	identityPart = 4 << 10
	// ShortenedAnnotation marks what is kept of a larger object; its value is tooLarge for an object that takes more than MaxMemory. No user
	// can write it: the API server rejects an annotation with such a name.
	ShortenedAnnotation = "(shortened)"
	shortened, tooLarge = "true", "too large"
)

// Transform returns a transform function for an informer. The function applies next, and then keeps a small object as it is and only the
// small fields of a larger one. Objects are pointers to types whose JSON is that of the API server.
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

// Shortened returns a small object as it is, and only the small fields of a larger one. It never fails, because with an error the informer
// would lose its other objects, too.
func Shortened(object client.Object) client.Object {
	size := memoryOf(object, MaxMemory)
	switch {
	case size <= MaxSize:
		return object
	case size > MaxMemory:
		return marked(identityOf(object), tooLarge)
	}
	text, err := json.Marshal(object)
	for part := maxPart; err == nil && part >= minPart; part /= 2 {
		short := newLike(object)
		if err = kjson.Unmarshal(partsOf(text, part), short); err == nil && memoryOf(short, MaxSize) <= MaxSize {
			return short
		}
	}
	// The client then reads the object from the API server, and the caller reports what is wrong with it.
	return marked(identityOf(object), shortened)
}

// partsOf returns the text of a Kubernetes object with the parts that fit into the limit, and with the mark.
func partsOf(text []byte, limit int) []byte {
	scanner, kept := newScanner(text), &bytes.Buffer{}
	scanner.scan()
	scanner.document(kept).keepParts(0, limit, nil, shortened)
	return kept.Bytes()
}

// KeepVersion is a transform function for an informer of metadata. It drops everything from an object but its name, UID and resource version.
// Annotations of Secrets can hold secret values: kubectl apply leaves a copy of the whole object in one.
func KeepVersion(object any) (any, error) {
	full, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	return &metav1.PartialObjectMetadata{TypeMeta: full.TypeMeta,
		Namespace: full.Namespace, Name: full.Name, UID: full.UID, ResourceVersion: full.ResourceVersion}, nil
}

func marked(short client.Object, mark string) client.Object {
	annotations := short.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[ShortenedAnnotation] = mark
	short.SetAnnotations(annotations)
	return short
}

// identityOf returns an object with only the names, versions and deletion timestamp of the original, and with its labels and owners if they
// are small.
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

func newLike(object client.Object) client.Object {
	return reflect.New(reflect.TypeOf(object).Elem()).Interface().(client.Object)
}

// IsShortened reports whether the object has only the small fields of the object on the API server. Get never returns such an object, but
// List does.
func IsShortened(object client.Object) bool {
	_, shortened := object.GetAnnotations()[ShortenedAnnotation]
	return shortened
}

// IsTooLarge reports whether Get refuses the object. The cache has its name and little else.
func IsTooLarge(object client.Object) bool {
	return object.GetAnnotations()[ShortenedAnnotation] == tooLarge
}

// NewClient returns a client that reads from the cache of the options. When the cache has shortened an object, Get reads it from the API
// server.
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
	// The object may share its maps with the cache, so it is cleared first.
	reflect.ValueOf(object).Elem().SetZero()
	return c.live.Get(ctx, key, object)
}

// Cached returns a reader of the cache that never sends a request to the API server, but may return only the small fields of an object. It
// is for handlers of events: all objects wait for the handlers.
func Cached(c client.Client) client.Reader {
	if whole, ok := c.(*wholeClient); ok {
		return whole.Client
	}
	return c
}
