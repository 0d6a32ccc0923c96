// Package sharedwork does what the controller does in goroutines that all tenants share, with one object of a tenant: it reads, decodes and
// transforms an event of a watch, computes the values of the indexes, and calls the handlers of all controllers with their predicates. An
// object that costs much there delays all others.
package sharedwork

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod"
	"github.com/stack-controller/stack-controller/internal/controller/update"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/source"
)

// Work is the shared work with the objects of a kind.
type Work struct {
	// Receive reads an event with the object from a watch, decodes and transforms it, and returns what the cache keeps of it.
	Receive func(object string) (client.Object, error)
	// Index computes the values of all indexes.
	Index func(object client.Object)
	// Handle calls all handlers: for an object that is new, that has changed, and that is gone.
	Handle func(before, after client.Object)
}

// New returns the work with the objects of each kind of worstobjects.Kinds. It needs dir for files; the controllers run until ctx ends.
func New(ctx context.Context, dir string) (map[schema.GroupVersionKind]*Work, error) {
	recorded, err := controllers(ctx, dir)
	if err != nil {
		return nil, err
	}
	works := map[schema.GroupVersionKind]*Work{}
	for kind, transform := range transforms(recorded.scheme) {
		r, err := newReceiver(kind, recorded.scheme, transform)
		if err != nil {
			return nil, err
		}
		found := recorded.kinds[kind]
		if found == nil {
			found = &informer{} // of metadata that other caches have
		}
		works[kind] = &Work{
			Receive: func(object string) (client.Object, error) { return r.receive(ctx, object) },
			Index:   found.index, Handle: found.handle,
		}
	}
	return works, nil
}

func (i *informer) index(object client.Object) {
	for _, values := range i.indexes {
		values(object)
	}
}

func (i *informer) handle(before, after client.Object) {
	for _, handler := range i.handlers {
		handler.OnAdd(before, false)
		handler.OnUpdate(before, after)
		handler.OnDelete(after)
	}
}

// transforms returns the transform functions of the caches, as the controller has them. Of Secrets and ConfigMaps, which are read as
// metadata, only the version is kept.
func transforms(scheme *runtime.Scheme) map[schema.GroupVersionKind]toolscache.TransformFunc {
	all := map[schema.GroupVersionKind]toolscache.TransformFunc{
		pulumiv1.GroupVersion.WithKind(pulumiv1.StackKind):                        informercache.Transform(source.CacheTransform),
		pulumiv1.GroupVersion.WithKind(pulumiv1.ProgramKind):                      informercache.Transform(source.ProgramCacheTransform),
		autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind):            informercache.Transform(source.CacheTransform),
		autov1alpha1.GroupVersion.WithKind(autov1alpha1.UpdateKind):               informercache.Transform(update.CacheTransform),
		autov1alpha1.GroupVersion.WithKind(autov1alpha1.ApprovalKind):             informercache.Transform(source.CacheTransform),
		{Group: "source.toolkit.fluxcd.io", Version: "v1", Kind: "GitRepository"}: source.CacheTransform,
		corev1.SchemeGroupVersion.WithKind("Secret"):                              source.CacheTransform,
		corev1.SchemeGroupVersion.WithKind("ConfigMap"):                           source.CacheTransform,
	}
	for object, settings := range pod.CachedObjects() {
		kinds, _, _ := scheme.ObjectKinds(object)
		all[kinds[0]] = settings.Transform
	}
	return all
}

// receiver reads events of objects of one kind. It implements http.RoundTripper and answers with one event.
type receiver struct {
	watch func(context.Context) (watch.Interface, error)
	// metadataOnly is true for objects of which the API server sends the metadata only.
	metadataOnly bool
	transform    toolscache.TransformFunc
	object       string
}

func newReceiver(kind schema.GroupVersionKind, scheme *runtime.Scheme, transform toolscache.TransformFunc) (*receiver, error) {
	r := &receiver{transform: transform}
	clients := &http.Client{Transport: informercache.NewTransport(r)}
	config := &rest.Config{Host: "http://127.0.0.1:1"}
	if r.metadataOnly = slices.Contains([]string{"Secret", "ConfigMap", "Service"}, kind.Kind); r.metadataOnly {
		reader, err := metadata.NewForConfigAndClient(config, clients)
		if err != nil {
			return nil, err
		}
		r.watch = func(ctx context.Context) (watch.Interface, error) {
			return reader.Resource(schema.GroupVersionResource{Version: kind.Version, Resource: "any"}).Watch(ctx, metav1.ListOptions{Watch: true})
		}
		return r, nil
	}
	reader, err := apiutil.RESTClientForGVK(kind, false, !scheme.Recognizes(kind), config, serializer.NewCodecFactory(scheme), clients)
	if err != nil {
		return nil, err
	}
	r.watch = func(ctx context.Context) (watch.Interface, error) {
		return reader.Get().Resource("any").Param("watch", "true").Watch(ctx)
	}
	return r, nil
}

// RoundTrip implements http.RoundTripper.
func (r *receiver) RoundTrip(request *http.Request) (*http.Response, error) {
	body := bytes.NewBufferString(`{"type":"MODIFIED","object":` + r.object + "}\n")
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: request, Body: io.NopCloser(body)}, nil
}

func (r *receiver) receive(ctx context.Context, object string) (client.Object, error) {
	r.object = object
	if _, rest, found := strings.Cut(object, `"metadata":`); found && r.metadataOnly {
		r.object = `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":` + rest
	}
	watching, err := r.watch(ctx)
	if err != nil {
		return nil, err
	}
	defer watching.Stop()
	event, ok := <-watching.ResultChan()
	if !ok {
		return nil, errors.New("the watch ended without an event")
	}
	if event.Type != watch.Modified {
		return nil, fmt.Errorf("the watch answered %v", event.Object)
	}
	kept, err := r.transform(event.Object)
	if err != nil {
		return nil, err
	}
	return kept.(client.Object), nil
}
