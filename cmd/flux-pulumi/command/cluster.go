package command

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

const (
	// callTimeout bounds a call of the API server, and completionTimeout all calls for the completion of a word.
	callTimeout       = 30 * time.Second
	completionTimeout = 3 * time.Second
	// defaultChunkSize is how many objects one call lists, as with kubectl.
	defaultChunkSize = 500
)

// cluster calls the API server as the user.
type cluster struct {
	client client.WithWatch
	config *rest.Config
	// namespace is that of the command line or of the kubeconfig.
	namespace string
	// chunkSize is how many objects one call lists.
	chunkSize int64
}

// connect reads the kubeconfig. It calls nobody yet.
func (s *session) connect() (*cluster, error) {
	config, err := s.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	namespace, _, err := s.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, fmt.Errorf("read the namespace of the kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 50, 100
	config.UserAgent = "flux-pulumi/" + s.Version
	config.WarningHandler = rest.NewWarningWriter(io.Writer(s.log), rest.WarningWriterOptions{Deduplicate: true})
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, authorizationv1.AddToScheme, authenticationv1.AddToScheme, coordinationv1.AddToScheme,
		pulumiv1.AddToScheme, autov1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register kinds: %w", err)
		}
	}
	caller, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("prepare calls of the API server: %w", err)
	}
	return &cluster{client: caller, config: config, namespace: namespace, chunkSize: defaultChunkSize}, nil
}

// key is the name of an object in the namespace of the command line.
func (c *cluster) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: c.namespace, Name: name}
}

// read reads an object.
func (c *cluster) read(ctx context.Context, key client.ObjectKey, into client.Object) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := c.client.Get(ctx, key, into); err != nil {
		return c.explained(err, "read %s %s", kindOf(into), key)
	}
	return nil
}

// list reads all objects that match, page by page, into an empty list.
func (c *cluster) list(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	var all []runtime.Object
	for next := ""; ; {
		page := into.DeepCopyObject().(client.ObjectList)
		if err := c.page(ctx, page, append(slices.Clone(options), client.Limit(c.chunkSize), client.Continue(next))); err != nil {
			return err
		}
		items, err := apimeta.ExtractList(page)
		if err != nil {
			return fmt.Errorf("read the list: %w", err)
		}
		all = append(all, items...)
		if next = page.GetContinue(); next == "" {
			into.SetResourceVersion(page.GetResourceVersion())
			return apimeta.SetList(into, all)
		}
	}
}

func (c *cluster) page(ctx context.Context, into client.ObjectList, options []client.ListOption) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := c.client.List(ctx, into, options...); err != nil {
		return c.explained(err, "list %s", kindOf(into))
	}
	return nil
}

// change sends what differs between the object and what it was before. It fails when somebody else changed the object meanwhile.
func (c *cluster) change(ctx context.Context, before, object client.Object) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := c.client.Patch(ctx, object, client.MergeFrom(before), client.FieldOwner(fieldOwner)); err != nil {
		return c.explained(err, "change %s %s", kindOf(object), client.ObjectKeyFromObject(object))
	}
	return nil
}

// fieldOwner is what the API server notes beside the fields that are written.
const fieldOwner = "flux-pulumi"

// kindOf names the kind of an object for a message.
func kindOf(object runtime.Object) string {
	if kind := object.GetObjectKind().GroupVersionKind().Kind; kind != "" {
		return kind
	}
	switch object.(type) {
	case *pulumiv1.Stack, *pulumiv1.StackList:
		return pulumiv1.StackKind
	case *autov1alpha1.Workspace, *autov1alpha1.WorkspaceList:
		return autov1alpha1.WorkspaceKind
	case *autov1alpha1.Update, *autov1alpha1.UpdateList:
		return autov1alpha1.UpdateKind
	case *autov1alpha1.Approval:
		return autov1alpha1.ApprovalKind
	case *corev1.EventList:
		return "Event"
	}
	return fmt.Sprintf("%T", object)
}

// explained is the error of a call, with what to do about it where that is known.
func (c *cluster) explained(err error, format string, args ...any) error {
	attempted := fmt.Sprintf(format, args...)
	switch {
	case apimeta.IsNoMatchError(err):
		return fmt.Errorf("%s: the cluster does not serve this kind; is stack-controller installed there? (%w)", attempted, err)
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: you are not allowed to: %w", attempted, err)
	}
	return fmt.Errorf("%s: %w", attempted, err)
}
