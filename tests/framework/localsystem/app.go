package localsystem

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
)

const (
	// PassphraseSecret is the name of the Secret that Deploy creates.
	PassphraseSecret = "pulumi"
	// PassphraseKey is the key of the passphrase in it.
	PassphraseKey = "passphrase"

	pollInterval = 50 * time.Millisecond
	// explainLines is how many lines of stack-controller's log Explain shows.
	explainLines = 30
)

// Apps deploys programs and follows them, wherever stack-controller runs them.
type Apps struct {
	// Git serves repositories.
	Git *gitserver.Server
	// Client is the client of the administrator, without a cache, for all kinds that the tests use.
	Client client.WithWatch
	// BackendURL is a state backend for Stacks.
	BackendURL string
	// Log returns the last lines that stack-controller logged, for a message about a failure.
	Log func(ctx context.Context, lines int) string
	// NamespaceLabels are the labels of every namespace that Deploy creates.
	NamespaceLabels map[string]string
	// Prepare creates further objects in a namespace, and changes a Stack so that it can run there. Nil does nothing.
	Prepare func(ctx context.Context, stack *pulumiv1.Stack) error
}

// App is a Stack that follows a GitRepository of the same name, and the git repository behind it.
type App struct {
	Namespace  string
	Name       string
	Repository *gitserver.Repository
}

// Key returns the namespace and name of the Stack and of the GitRepository.
func (a *App) Key() client.ObjectKey {
	return client.ObjectKey{Namespace: a.Namespace, Name: a.Name}
}

// Deploy creates a git repository with the files, and in a namespace with the name of the app a Secret with a passphrase, a GitRepository
// and a Stack. Each change is applied to the Stack before it is created.
func (a *Apps) Deploy(ctx context.Context, name string, files gitserver.Files, changes ...func(*pulumiv1.Stack)) (*App, error) {
	app, stack, err := a.Provide(ctx, name, files)
	if err != nil {
		return nil, err
	}
	for _, change := range changes {
		change(stack)
	}
	return app, a.create(ctx, stack)
}

// Provide does the same as Deploy, but returns the Stack without creating it.
func (a *Apps) Provide(ctx context.Context, name string, files gitserver.Files) (*App, *pulumiv1.Stack, error) {
	repository, _, err := a.Git.Create(name, files)
	if err != nil {
		return nil, nil, err
	}
	return a.ProvideFrom(ctx, name, repository)
}

// ProvideFrom does the same with a repository that exists, and that other apps may follow, too.
func (a *Apps) ProvideFrom(ctx context.Context, name string, repository *gitserver.Repository) (*App, *pulumiv1.Stack, error) {
	app := &App{Namespace: name, Name: name, Repository: repository}
	stack := a.NewStack(app.Namespace, app.Name, sourcev1.GitRepositoryKind)
	namespace := &corev1.Namespace{Name: app.Namespace, Labels: a.NamespaceLabels}
	if err := a.create(ctx, namespace); err != nil {
		return nil, nil, err
	}
	if a.Prepare != nil {
		if err := a.Prepare(ctx, stack); err != nil {
			return nil, nil, err
		}
	}
	secret := &corev1.Secret{
		Namespace: app.Namespace, Name: PassphraseSecret,
		StringData: map[string]string{PassphraseKey: "correct horse battery staple"},
	}
	if err := a.create(ctx, secret); err != nil {
		return nil, nil, err
	}
	return app, stack, a.create(ctx, gitRepository(app))
}

func (a *Apps) create(ctx context.Context, object client.Object) error {
	if err := a.Client.Create(ctx, object); err != nil {
		return fmt.Errorf("create %T %s: %w", object, client.ObjectKeyFromObject(object), err)
	}
	return nil
}

func gitRepository(app *App) *sourcev1.GitRepository {
	return &sourcev1.GitRepository{
		Namespace: app.Namespace, Name: app.Name,
		Spec: sourcev1.GitRepositorySpec{
			URL:       app.Repository.URL,
			Interval:  metav1.Duration{Duration: time.Hour}, // Fetch announces commits
			Reference: &sourcev1.GitRepositoryRef{Branch: gitserver.Branch},
		},
	}
}

// NewStack returns a Stack that follows a source of the kind with the same name. Its state is in the backend, and its passphrase is in the
// Secret that Deploy creates.
func (a *Apps) NewStack(namespace, name, kind string) *pulumiv1.Stack {
	return &pulumiv1.Stack{
		Namespace: namespace, Name: name,
		Spec: pulumiv1.StackSpec{
			Stack:   "dev",
			Backend: a.BackendURL,
			FluxSource: &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{
				APIVersion: sourcev1.GroupVersion.String(), Kind: kind, Name: name,
			}},
			EnvRefs: map[string]pulumiv1.ResourceRef{"PULUMI_CONFIG_PASSPHRASE": SecretRef(PassphraseSecret, PassphraseKey)},
		},
	}
}

// SecretRef refers to a key of a Secret.
func SecretRef(name, key string) pulumiv1.ResourceRef {
	return pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: name, Key: key}}
}

// Fetch makes source-controller fetch the repository now, as a Receiver does after a push.
func (a *Apps) Fetch(ctx context.Context, app *App) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		meta.ReconcileRequestAnnotation: time.Now().Format(time.RFC3339Nano),
	}}})
	if err != nil {
		return fmt.Errorf("encode the request: %w", err)
	}
	source := &sourcev1.GitRepository{Namespace: app.Namespace, Name: app.Name}
	if err := a.Client.Patch(ctx, source, client.RawPatch("application/merge-patch+json", patch)); err != nil {
		return fmt.Errorf("request a fetch of GitRepository %s: %w", app.Key(), err)
	}
	return nil
}

// WaitReady waits, as long as the context allows, until the Stack is Ready for its current specification, and returns it. When the Stack
// does not become ready, the error ends with the result of Explain.
func (a *Apps) WaitReady(ctx context.Context, app *App) (*pulumiv1.Stack, error) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		stack := &pulumiv1.Stack{}
		if err := a.Client.Get(ctx, app.Key(), stack); err == nil && isReady(stack) {
			return stack, nil
		} else if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			return nil, fmt.Errorf("read Stack %s: %w", app.Key(), err)
		}
		select {
		case <-ctx.Done():
			explanation := a.Explain(context.WithoutCancel(ctx), app)
			return nil, fmt.Errorf("wait until Stack %s is ready: %w\n%s", app.Key(), context.Cause(ctx), explanation)
		case <-ticker.C:
		}
	}
}

func isReady(stack *pulumiv1.Stack) bool {
	return stack.Status.ObservedGeneration == stack.Generation &&
		apimeta.IsStatusConditionTrue(stack.Status.Conditions, meta.ReadyCondition)
}

// Explain describes the state of the app's objects, with the last lines of stack-controller's log, for a message about a failure.
func (a *Apps) Explain(ctx context.Context, app *App) string {
	var out strings.Builder
	source := &sourcev1.GitRepository{}
	if err := a.Client.Get(ctx, app.Key(), source); err != nil {
		fmt.Fprintf(&out, "GitRepository: %v\n", err)
	}
	explain(&out, "GitRepository "+app.Name, source.Status.Conditions)
	stack := &pulumiv1.Stack{}
	if err := a.Client.Get(ctx, app.Key(), stack); err != nil {
		fmt.Fprintf(&out, "Stack: %v\n", err)
	}
	explain(&out, "Stack "+app.Name, stack.Status.Conditions)
	updates := &autov1alpha1.UpdateList{}
	if err := a.Client.List(ctx, updates, client.InNamespace(app.Namespace)); err != nil {
		fmt.Fprintf(&out, "Updates: %v\n", err)
	}
	for _, update := range updates.Items {
		explain(&out, "Update "+update.Name, update.Status.Conditions)
	}
	fmt.Fprintf(&out, "stack-controller logged last:\n%s\n", a.Log(context.WithoutCancel(ctx), explainLines))
	return out.String()
}

func explain(out *strings.Builder, object string, conditions []metav1.Condition) {
	if len(conditions) == 0 {
		fmt.Fprintf(out, "%s has no conditions\n", object)
	}
	for _, c := range conditions {
		fmt.Fprintf(out, "%s: %s=%s %s: %s\n", object, c.Type, c.Status, c.Reason, c.Message)
	}
}
