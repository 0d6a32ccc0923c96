// Package outputobject writes Secrets and ConfigMaps with outputs of Stacks, without ever changing a value of an object of somebody else.
//
// Everything is written by server-side apply, with a field manager of its own and never by force. An apply to an object that exists merges
// into it, also into one that others have made: so the metadata is read first, and an object that was written before is named by its UID. An
// API server has no request to apply only what does not exist yet. So when an object appears between reading and writing, which the status
// code of the answer tells, our fields are withdrawn from it at once.
package outputobject

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

const (
	// FieldManager is the field manager of all writes.
	FieldManager = "stack-controller-outputs"

	// requestTimeout bounds each request.
	requestTimeout = 30 * time.Second
	// maxAttempts bounds how often one object is tried within one call of Write: it may change meanwhile.
	maxAttempts = 5
	// onlyMetadata makes the API server answer without the data.
	onlyMetadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
)

// Object is what is wanted of a Secret or a ConfigMap.
type Object struct {
	Kind                pulumiv1.OutputObjectKind
	Namespace, Name     string
	Type                corev1.SecretType
	Labels, Annotations map[string]string
	// Data has the values. Those of a ConfigMap are UTF-8.
	Data map[string][]byte
	// Retain leaves the object when its Stack is gone.
	Retain bool
}

// Size is the number of bytes of the data, as the API server counts them: at most corev1.MaxSecretSize.
func (o *Object) Size() (size int) {
	for key, value := range o.Data {
		size += len(key) + len(value)
	}
	return size
}

// Version identifies one version of one object. The zero value is none.
type Version struct {
	UID             types.UID
	ResourceVersion string
}

// ForeignError reports that an object exists that the Stack has not created. It was not changed.
type ForeignError struct {
	// Object is its kind and name, Owner what owns it; empty if nothing is known.
	Object, Owner string
	// UID is that of the object.
	UID types.UID
	// Earlier is the UID of another Stack that has created the object and had the name of this one; empty if it is not known to be of one. If there
	// is no such Stack any longer, the object can be written by its UID.
	Earlier types.UID
	// Unnamed says that a Stack whose name is not known has created the object, which may have been an earlier one of this name: the name was not
	// always written.
	Unnamed bool
}

func (e *ForeignError) Error() string {
	if e.Owner != "" {
		return fmt.Sprintf("%s exists and belongs to %s", e.Object, e.Owner)
	}
	return e.Object + " exists and was not created by this Stack"
}

// ForbiddenError reports that the controller has not the right to write an object.
type ForbiddenError struct{ err error }

func (e *ForbiddenError) Error() string { return e.err.Error() }
func (e *ForbiddenError) Unwrap() error { return e.err }

// InvalidError reports that the API server will never accept the object as it is wanted.
type InvalidError struct{ err error }

func (e *InvalidError) Error() string { return e.err.Error() }
func (e *InvalidError) Unwrap() error { return e.err }

// Writer writes the objects.
type Writer struct {
	core   kubernetes.Interface
	reader client.Reader
}

// NewWriter returns a Writer that sends its requests with the configuration and the client. The reader reads from the API server, not from a
// cache.
func NewWriter(config *rest.Config, client *http.Client, reader client.Reader) (*Writer, error) {
	core, err := kubernetes.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, fmt.Errorf("create a client for Secrets and ConfigMaps: %w", err)
	}
	return &Writer{core: core, reader: reader}, nil
}

// Identity returns the ServiceAccount of the controller, or the user that it is.
func (w *Writer) Identity(ctx context.Context) (rbacv1.Subject, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	review, err := w.core.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return rbacv1.Subject{}, fmt.Errorf("ask the API server who the controller is: %w", err)
	}
	name := review.Status.UserInfo.Username
	if account, isAccount := strings.CutPrefix(name, "system:serviceaccount:"); isAccount {
		namespace, account, _ := strings.Cut(account, ":")
		return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}, nil
	}
	return rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}, nil
}

// Write makes the object what is wanted, for the Stack, and returns the version that it has then. known is the version that was written
// before. Errors are a *ForeignError, a *ForbiddenError, an *InvalidError, or may pass.
func (w *Writer) Write(ctx context.Context, stack *pulumiv1.Stack, object *Object, known Version) (Version, error) {
	uid := known.UID
	for range maxAttempts {
		if uid == "" {
			found, err := w.find(ctx, object)
			if err != nil {
				return Version{}, err
			}
			if found != nil && !isOf(stack, found) {
				return Version{}, foreign(stack, object, found)
			}
			if found != nil {
				uid = found.UID
			}
		}
		written, created, err := w.apply(ctx, stack, object, uid)
		switch {
		case err == nil && uid == "" && !created:
			// It appeared after it was looked for.
			return Version{}, errors.Join(foreign(stack, object, written), w.withdraw(ctx, object, written.UID))
		case err == nil:
			return Version{UID: written.UID, ResourceVersion: written.ResourceVersion}, nil
		case apierrors.IsForbidden(err):
			return Version{}, &ForbiddenError{err}
		case uid == "" && apierrors.IsConflict(err):
			continue // it appeared, and has one of our keys with another value
		}
		if uid, err = w.overcome(ctx, object, uid, err); err != nil {
			return Version{}, err
		}
	}
	return Version{}, fmt.Errorf("write %s: it changes all the time", describe(object))
}

// overcome does what is necessary before an object of the Stack can be written that could not be because of the error. It returns the UID
// that the object has now, empty when there is none.
func (w *Writer) overcome(ctx context.Context, object *Object, uid types.UID, failure error) (types.UID, error) {
	switch {
	case apierrors.IsRequestEntityTooLargeError(failure), uid == "" && apierrors.IsInvalid(failure):
		return "", &InvalidError{failure}
	case !apierrors.IsConflict(failure) && !apierrors.IsInvalid(failure):
		return "", fmt.Errorf("write %s: %w", describe(object), failure)
	}
	found, err := w.find(ctx, object)
	switch {
	case err != nil:
		return "", err
	case found == nil || found.UID != uid:
		return "", nil // deleted, and perhaps created again by somebody
	case apierrors.IsConflict(failure):
		// Somebody has edited what the Stack has written.
		if failure = w.clear(ctx, object, uid, failure); !onlyImmutable(failure) {
			return uid, failure
		}
	}
	if onlyImmutable(failure) {
		// The type has changed, or somebody has made it immutable.
		return "", w.Remove(ctx, object.Kind, client.ObjectKey{Namespace: object.Namespace, Name: object.Name}, uid)
	}
	return "", &InvalidError{failure}
}

// find reads the metadata of the object; nil when there is no object.
func (w *Writer) find(ctx context.Context, object *Object) (*metav1.PartialObjectMetadata, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	found := &metav1.PartialObjectMetadata{}
	found.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(string(object.Kind)))
	err := w.reader.Get(ctx, client.ObjectKey{Namespace: object.Namespace, Name: object.Name}, found)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case apierrors.IsForbidden(err):
		return nil, &ForbiddenError{err}
	case err != nil:
		return nil, fmt.Errorf("look for %s: %w", describe(object), err)
	}
	return found, nil
}

// isOf reports whether the Stack has created the object.
func isOf(stack *pulumiv1.Stack, object metav1.Object) bool {
	owner := metav1.GetControllerOf(object)
	return object.GetLabels()[pulumiv1.StackUIDLabel] == string(stack.UID) && (owner == nil || owner.UID == stack.UID)
}

func foreign(stack *pulumiv1.Stack, object *Object, found metav1.Object) *ForeignError {
	e := &ForeignError{Object: describe(object), UID: found.GetUID()}
	owner, creator := metav1.GetControllerOf(found), found.GetLabels()[pulumiv1.StackUIDLabel]
	switch name := found.GetAnnotations()[pulumiv1.StackNameAnnotation]; {
	case owner != nil:
		e.Owner = owner.Kind + " " + owner.Name
	case creator == "" || creator == string(stack.UID): // the second is what this Stack has just added to it
	case name == "":
		e.Owner, e.Unnamed = "a Stack that was deleted, or to another one", true
	case name == stack.Name:
		e.Owner, e.Earlier = "another Stack", types.UID(creator)
	default:
		e.Owner = "Stack " + name
	}
	return e
}

func describe(object *Object) string { return fmt.Sprintf("%s %s", object.Kind, object.Name) }

// Labels returns the labels of an object of the Stack for which these are wanted. By one of them, Flux's controllers notice changes at once.
func Labels(stack *pulumiv1.Stack, wanted map[string]string) map[string]string {
	labels := map[string]string{meta.LabelKeyWatch: meta.LabelValueWatchEnabled}
	maps.Copy(labels, wanted)
	labels[pulumiv1.StackUIDLabel] = string(stack.UID)
	return labels
}

// apply applies the object, only to the one with the UID if there is one. It returns the metadata of the object, and whether the request
// created it.
func (w *Writer) apply(ctx context.Context, stack *pulumiv1.Stack, object *Object, uid types.UID) (*metav1.PartialObjectMetadata, bool, error) {
	metadata := map[string]any{"namespace": object.Namespace, "name": object.Name, "labels": Labels(stack, object.Labels)}
	if uid != "" {
		metadata["uid"] = uid
	}
	annotations := map[string]string{}
	maps.Copy(annotations, object.Annotations)
	annotations[pulumiv1.StackNameAnnotation] = stack.Name
	metadata["annotations"] = annotations
	if !object.Retain {
		metadata["ownerReferences"] = []metav1.OwnerReference{*metav1.NewControllerRef(stack, pulumiv1.GroupVersion.WithKind(pulumiv1.StackKind))}
	}
	content := map[string]any{"metadata": metadata, "data": object.Data}
	if object.Kind == pulumiv1.OutputConfigMap {
		data := make(map[string]string, len(object.Data))
		for key, value := range object.Data {
			data[key] = string(value)
		}
		content["data"] = data
	} else if object.Type != "" {
		content["type"] = object.Type
	}
	return w.patch(ctx, types.ApplyPatchType, object, content)
}

// withdraw removes our fields from an object that turned out to be one of somebody else. What others have written stays.
func (w *Writer) withdraw(ctx context.Context, object *Object, uid types.UID) error {
	metadata := map[string]any{"namespace": object.Namespace, "name": object.Name, "uid": uid}
	if _, _, err := w.patch(ctx, types.ApplyPatchType, object, map[string]any{"metadata": metadata}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("withdraw from %s, which somebody has created at the same time: %w", describe(object), err)
	}
	return nil
}

// clear removes, from an object of the Stack, the fields that others have changed, so that they can be written again without force.
func (w *Writer) clear(ctx context.Context, object *Object, uid types.UID, failure error) error {
	change, metadata := map[string]any{}, map[string]any{"uid": uid}
	remove := func(from map[string]any, field, key string) {
		values, _ := from[field].(map[string]any)
		if values == nil {
			values = map[string]any{}
			from[field] = values
		}
		values[key] = nil
	}
	for _, cause := range causesOf(failure) {
		if key, isData := strings.CutPrefix(cause.Field, ".data."); isData {
			remove(change, "data", key)
		} else if key, isLabel := strings.CutPrefix(cause.Field, ".metadata.labels."); isLabel {
			remove(metadata, "labels", key)
		} else if key, isAnnotation := strings.CutPrefix(cause.Field, ".metadata.annotations."); isAnnotation {
			remove(metadata, "annotations", key)
		}
	}
	if len(change) == 0 && len(metadata) == 1 {
		return fmt.Errorf("write %s: %w", describe(object), failure)
	}
	change["metadata"] = metadata
	_, _, err := w.patch(ctx, types.MergePatchType, object, change)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("undo what somebody has changed in %s: %w", describe(object), err)
	}
	return nil
}

// onlyImmutable reports whether the API server refused nothing but changes of fields that cannot be changed.
func onlyImmutable(failure error) bool {
	causes := causesOf(failure)
	return len(causes) > 0 && !slices.ContainsFunc(causes, func(cause metav1.StatusCause) bool {
		return !strings.Contains(cause.Message, "field is immutable")
	})
}

func causesOf(failure error) []metav1.StatusCause {
	var status apierrors.APIStatus
	if !errors.As(failure, &status) || status.Status().Details == nil {
		return nil
	}
	return status.Status().Details.Causes
}

// Remove deletes the object if it still has the UID.
func (w *Writer) Remove(ctx context.Context, kind pulumiv1.OutputObjectKind, key client.ObjectKey, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := w.core.CoreV1().RESTClient().Delete().Namespace(key.Namespace).Resource(resourceOf(kind)).Name(key.Name).
		Body(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}).Do(ctx).Error()
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err): // somebody else was faster, or it is another object
		return nil
	case apierrors.IsForbidden(err):
		return &ForbiddenError{err}
	}
	return fmt.Errorf("delete %s %s: %w", kind, key.Name, err)
}

func resourceOf(kind pulumiv1.OutputObjectKind) string {
	if kind == pulumiv1.OutputConfigMap {
		return "configmaps"
	}
	return "secrets"
}

// patch patches the object, and returns its metadata and whether it was created.
func (w *Writer) patch(ctx context.Context, patch types.PatchType, object *Object, content map[string]any) (*metav1.PartialObjectMetadata, bool, error) {
	if patch == types.ApplyPatchType {
		content["apiVersion"], content["kind"] = "v1", object.Kind
	}
	body, err := json.Marshal(content)
	if err != nil {
		return nil, false, fmt.Errorf("encode %s: %w", describe(object), err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	result := w.core.CoreV1().RESTClient().Patch(patch).Namespace(object.Namespace).Resource(resourceOf(object.Kind)).Name(object.Name).
		Param("fieldManager", FieldManager).SetHeader("Accept", onlyMetadata).Body(body).Do(ctx)
	if err := result.Error(); err != nil {
		return nil, false, err
	}
	code := 0
	answer, err := result.StatusCode(&code).Raw()
	if err != nil {
		return nil, false, err
	}
	written := &metav1.PartialObjectMetadata{}
	if err := json.Unmarshal(answer, written); err != nil {
		return nil, false, fmt.Errorf("read the answer about %s: %w", describe(object), err)
	}
	return written, code == http.StatusCreated, nil
}
