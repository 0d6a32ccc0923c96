package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

const (
	// callTimeout bounds one call of the API server, and completionTimeout all calls for one shell completion.
	callTimeout       = 30 * time.Second
	completionTimeout = 3 * time.Second
	// defaultChunkSize is how many objects one call lists, the same as with kubectl.
	defaultChunkSize = 500
)

// cluster calls the API server as the user.
type cluster struct {
	client client.WithWatch
	config *rest.Config
	// namespace is the namespace of the command line or of the kubeconfig.
	namespace string
	// chunkSize is how many objects one call lists.
	chunkSize int64
}

// connect reads the kubeconfig. It does not call the API server yet.
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
		storagev1.AddToScheme, pulumiv1.AddToScheme, autov1alpha1.AddToScheme,
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

// login runs the credential plugin of the kubeconfig, if there is one, which may ask the user something: without this, the time of the first call
// would end meanwhile. It calls no API server. client-go keeps the credentials for the calls that follow.
func (c *cluster) login(ctx context.Context) error {
	if c.config.ExecProvider == nil {
		return nil
	}
	transport, err := c.config.TransportConfig()
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://cluster.invalid", http.NoBody)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	response, err := transport.WrapTransport(unsent{}).RoundTrip(request)
	if err != nil {
		return fmt.Errorf("log in to the cluster: %w", err)
	}
	return response.Body.Close()
}

// unsent answers a request without sending it.
type unsent struct{}

func (unsent) RoundTrip(request *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: request}, nil
}

// key is the name of an object in the namespace of the command line.
func (c *cluster) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: c.namespace, Name: name}
}

// read reads an object.
func (c *cluster) read(ctx context.Context, key client.ObjectKey, into client.Object) error {
	return call(ctx, func(ctx context.Context) error { return c.client.Get(ctx, key, into) }, "read %s %s", c.kindOf(into), key)
}

// list reads all objects that match, page by page, into an empty list.
func (c *cluster) list(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	var all []runtime.Object
	for next := ""; ; {
		page := into.DeepCopyObject().(client.ObjectList)
		err := call(ctx, func(ctx context.Context) error {
			return c.client.List(ctx, page, append(slices.Clone(options), client.Limit(c.chunkSize), client.Continue(next))...)
		}, "list %s", c.kindOf(into))
		if err != nil {
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

// change patches the fields that differ between before and the object. It does not check whether the object was changed in the meantime.
func (c *cluster) change(ctx context.Context, before, object client.Object) error {
	return call(ctx, func(ctx context.Context) error {
		return c.client.Patch(ctx, object, client.MergeFrom(before), client.FieldOwner(fieldOwner))
	}, "change %s %s", c.kindOf(object), client.ObjectKeyFromObject(object))
}

// create creates an object.
func (c *cluster) create(ctx context.Context, object client.Object) error {
	return call(ctx, func(ctx context.Context) error {
		return c.client.Create(ctx, object, client.FieldOwner(fieldOwner))
	}, "create %s", c.kindOf(object))
}

// remove deletes an object, if it is there.
func (c *cluster) remove(ctx context.Context, object client.Object) error {
	return call(ctx, func(ctx context.Context) error {
		return client.IgnoreNotFound(c.client.Delete(ctx, object))
	}, "delete %s %s", c.kindOf(object), client.ObjectKeyFromObject(object))
}

// fieldOwner is the field manager that the API server records for the fields that the commands write.
const fieldOwner = "flux-pulumi"

// kindOf returns the kind of an object, or of the items of a list, for a message.
func (c *cluster) kindOf(object runtime.Object) string {
	kind, err := c.client.GroupVersionKindFor(object)
	if err != nil {
		return fmt.Sprintf("%T", object)
	}
	return strings.TrimSuffix(kind.Kind, "List")
}

// call makes one call of the API server. The format describes what the call attempts.
func call(ctx context.Context, do func(context.Context) error, format string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return explained(do(ctx), format, args...)
}

// explained returns the error of a call, if there is one, with advice where it is known.
func explained(err error, format string, args ...any) error {
	attempted := fmt.Sprintf(format, args...)
	switch {
	case err == nil:
		return nil
	case apimeta.IsNoMatchError(err):
		return fmt.Errorf("%s: the cluster does not serve this kind; is %s installed there? (%w)", attempted, providerOf(err), err)
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: you are not allowed to: %w", attempted, err)
	}
	return fmt.Errorf("%s: %w", attempted, err)
}

// providerOf returns what brings the kind that the error is about.
func providerOf(err error) string {
	group := ""
	if kind, isKind := errors.AsType[*apimeta.NoKindMatchError](err); isKind {
		group = kind.GroupKind.Group
	}
	switch {
	case group == pulumiv1.GroupVersion.Group, group == autov1alpha1.GroupVersion.Group:
		return "stack-controller"
	case strings.HasSuffix(group, ".toolkit.fluxcd.io"):
		return "Flux"
	}
	return "what provides it"
}
