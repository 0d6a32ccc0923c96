package objectwatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stack-controller/stack-controller/internal/informercache"
)

const (
	// readTimeout bounds one request for an object.
	readTimeout = 10 * time.Second
	// missingFor is how long the cluster is not asked again for a kind that it does not have: each question reads the list of its kinds.
	missingFor = 2 * time.Second
	// maxMissing bounds how many versions of kinds are remembered as missing.
	maxMissing = 100
)

// Problem is why an object cannot be read. Its text is for users, as the continuation of a sentence that begins with the name of the object.
// It does not say whether the object exists.
type Problem struct {
	// Denied says that the controller may not read it.
	Denied  bool
	Message string
}

func (p *Problem) Error() string { return p.Message }

// Answer is what is known of an object.
type Answer struct {
	// Object is nil when there is none. It is shared, and must not be changed.
	Object *Object
	// Watched says that a change of the object will be reported to the listeners.
	Watched bool
	// Outdated says that the object has changed since it was read for somebody else, less than a second ago; After is when it can be read
	// again.
	Outdated bool
	After    time.Duration
}

// answer is one request for an object, and its result once done is closed.
type answer struct {
	done   chan struct{}
	at     time.Time
	object *Object
	err    error
}

// version returns the version of the object that was found.
func (a *answer) version() string {
	if a.object == nil {
		return ""
	}
	return a.object.ResourceVersion
}

// Read returns the object. All who ask for an object within a second share one request. The error is a *Problem when the object cannot be
// read for a reason that lasts. The kind has to be an allowed one, see Allows. The namespace is that of the object which names it.
func (w *Watcher) Read(ctx context.Context, namespace string, key Key) (Answer, error) {
	if !w.Allows(key.GroupKind()) {
		return Answer{}, errNotAllowed
	}
	mapping, err := w.mapping(namespace, key)
	if err != nil {
		return Answer{}, err
	}
	// The watch starts before the object is read, so that it reports what changes after that.
	watching := w.use(key.GroupVersionKind)
	current, known := watching.version(ctx, key)
	inReach := w.Namespace == "" || w.Namespace == key.Namespace
	found, own, err := w.read(ctx, key, func(earlier *answer) bool { return known && inReach && current == earlier.version() })
	if err != nil {
		return Answer{}, err
	}
	result := Answer{Object: found.object, Watched: inReach && watching.works()}
	// If this call has sent the request, another version is one that the informer still has to find, or found meanwhile: it reports both.
	if current, known = watching.version(ctx, key); known && inReach && !own && current != found.version() {
		result.Outdated, result.After = true, max(shareFor-time.Since(found.at), time.Millisecond)
	}
	return result, w.problem(key, mapping, found.err)
}

// mapping returns the resource of the kind. For a version that it does not know, a mapper asks the cluster: only one question is asked at a time, so
// that those who wait for the answer use up no others.
func (w *Watcher) mapping(namespace string, key Key) (*apimeta.RESTMapping, error) {
	if !w.has(key.GroupVersionKind) {
		w.asking.Lock()
		defer w.asking.Unlock()
		if !w.has(key.GroupVersionKind) && (w.isMissing(key.GroupVersionKind) || !w.limits.Allow(namespace)) {
			return nil, noKind(key)
		}
	}
	mapping, err := w.Mapper.RESTMapping(key.GroupKind(), key.Version)
	switch {
	case apimeta.IsNoMatchError(err):
		w.noteMissing(key.GroupVersionKind)
		return nil, noKind(key)
	case err != nil:
		return nil, fmt.Errorf("find the resource of %s: %w", key.GroupVersionKind, err)
	case mapping.Scope.Name() != apimeta.RESTScopeNameNamespace:
		return nil, &Problem{Denied: true, Message: "cannot be a dependency: objects of its kind are in no namespace, so none may be named from one"}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.served.Insert(key.GroupVersionKind)
	return mapping, nil
}

// has reports whether the cluster is known to have the kind, and isMissing whether it had not just now.
func (w *Watcher) has(kind schema.GroupVersionKind) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.served.Has(kind)
}

func (w *Watcher) isMissing(kind schema.GroupVersionKind) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	since, known := w.missing[kind]
	return known && time.Since(since) < missingFor
}

// noKind is the problem of a kind that the cluster does not have.
func noKind(key Key) *Problem {
	return &Problem{Message: fmt.Sprintf("cannot be read: the cluster has no kind %s in %s; install its CustomResourceDefinition",
		key.Kind, key.GroupVersion())}
}

// noteMissing remembers for a while that the cluster does not have the kind.
func (w *Watcher) noteMissing(kind schema.GroupVersionKind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.missing) >= maxMissing {
		clear(w.missing)
	}
	w.missing[kind] = time.Now()
	w.served.Delete(kind)
}

// read returns what the API server answered last if that can still be used, and asks it otherwise; own reports whether this call has asked.
// isCurrent reports whether the object is known to be the same as in an earlier answer.
func (w *Watcher) read(ctx context.Context, key Key, isCurrent func(*answer) bool) (result *answer, own bool, err error) {
	w.mu.Lock()
	if earlier, found := w.answers.Get(key); found {
		age := time.Since(earlier.at)
		if age < shareFor || earlier.err == nil && age < trustFor && isCurrent(earlier) {
			w.mu.Unlock()
			return earlier, false, nil
		}
	}
	asked, shared := w.reading[key]
	if !shared {
		asked = &answer{done: make(chan struct{}), at: time.Now()}
		w.reading[key] = asked
	}
	w.mu.Unlock()
	if !shared {
		w.ask(ctx, key, asked)
	}
	select {
	case <-asked.done:
		return asked, !shared, nil
	case <-ctx.Done():
		return nil, false, fmt.Errorf("read %s %s/%s: %w", key.Kind, key.Namespace, key.Name, ctx.Err())
	}
}

// ask reads the object, and keeps the answer.
func (w *Watcher) ask(ctx context.Context, key Key, asked *answer) {
	asked.err = errors.New("the request was not finished") // if it panics
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.reading, key)
		size := int64(512)
		if asked.object != nil {
			size += asked.object.size()
		}
		w.answers.Add(key, asked, size)
		close(asked.done)
	}()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	full := &unstructured.Unstructured{}
	full.SetGroupVersionKind(key.GroupVersionKind)
	err := w.APIReader.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: key.Name}, full)
	switch {
	case err == nil:
		asked.object, asked.err = reduce(full), nil
	case apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		asked.err = nil
	default:
		asked.err = err
	}
}

// problem returns the error of a request as a Problem if it lasts.
func (w *Watcher) problem(key Key, mapping *apimeta.RESTMapping, err error) error {
	if _, tooLarge := errors.AsType[*informercache.TooLargeError](err); tooLarge {
		return &Problem{Message: fmt.Sprintf("cannot be read: it takes more than %d MiB of memory", informercache.MaxMemory>>20)}
	}
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return &Problem{Denied: true, Message: fmt.Sprintf("cannot be read: this controller may not; allow it with the rule "+
			`{apiGroups: ["%s"], resources: ["%s"], verbs: ["get", "list", "watch"]}`, mapping.Resource.Group, mapping.Resource.Resource)}
	case apierrors.IsNotFound(err), apimeta.IsNoMatchError(err):
		// The mapper still knows a kind that the cluster no longer has. Without this note, each question would start a watch of it.
		w.noteMissing(key.GroupVersionKind)
		return noKind(key)
	}
	return fmt.Errorf("read %s %s/%s: %w", key.Kind, key.Namespace, key.Name, err)
}
